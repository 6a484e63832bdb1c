#!/usr/bin/env python3
"""Writes a model folder whose decoder layers are those of MODEL, repeated: MODEL OUT TIMES.

Its text is nonsense; it is for measuring time and memory of deep models. One shard, no libraries.
"""

import json
import pathlib
import re
import shutil
import struct
import sys


def read(path):
    """name → (dtype, shape, bytes) of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    base = 8 + size
    return {n: (e["dtype"], e["shape"], data[base + e["data_offsets"][0]:base + e["data_offsets"][1]])
            for n, e in header.items()}


def write(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def main():
    model, out, times = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    out.mkdir(parents=True)
    config = json.loads((model / "config.json").read_text())
    n_layers = config["num_hidden_layers"]
    tensors = {}
    for shard in sorted(model.glob("*.safetensors")):
        for name, tensor in read(shard).items():
            layer = re.match(r"model\.layers\.(\d+)\.(.*)", name)
            for i in range(times if layer else 1):
                copy = f"model.layers.{i * n_layers + int(layer[1])}.{layer[2]}" if layer else name
                tensors[copy] = tensor
    write(out / "model.safetensors", dict(sorted(tensors.items())))
    config["num_hidden_layers"] = n_layers * times
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"] * times
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (model / name).exists():
            shutil.copy(model / name, out / name)


if __name__ == "__main__":
    main()
