"""What run.py runs: models with their calibration ids, the windows that are scored, and a group size.

The tiny random models of tests/data/families have no tokenizer, since their tests feed ids. A GGUF
file needs a vocabulary, so a copy of each gets one of bytes.
"""

import dataclasses
import json
import pathlib
import shutil
import struct

import numpy as np

BYTES_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
               r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # of Llama 3
SPECIALS = ["<|bos|>", "<|eos|>", "<|pad|>"]


@dataclasses.dataclass
class Subject:
    name: str
    folder: pathlib.Path
    calibration: pathlib.Path
    n_calibration_windows: int
    windows: np.ndarray  # (n, length) int32, as fed
    group_size: int

    @property
    def has_experts(self):
        config = json.loads((self.folder / "config.json").read_text())
        return any(config.get(key) for key in ("num_experts", "num_local_experts"))


def read_tensor(path, name, dtype):
    """One tensor of a safetensors file."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        entry = json.loads(file.read(size))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + size + begin)
        return np.frombuffer(file.read(end - begin), dtype=dtype).reshape(entry["shape"])


def trained_model(folder, calibration, token_ids, options):
    """A model of ASSAY_SHARED, or any other folder with files of its own."""
    shared = options.shared
    calibration = calibration or (
        shared and shared / f"references/calibration/{folder.name.split('-')[0]}.npy")
    token_ids = token_ids or (shared and shared / f"references/{folder.name}/nll.safetensors")
    if not (calibration and token_ids):
        raise SystemExit("set ASSAY_SHARED, or give --calibration and --token-ids")
    ids = read_tensor(token_ids, "token_ids", np.int32)[: options.windows]
    return Subject(folder.name, folder, calibration, options.calibration_windows, ids, 128)


def byte_characters():
    """The printable character that byte-level BPE has for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}


def byte_tokenizer(vocab_size):
    characters = byte_characters()
    # A tokenizer of this kind must have a merge.
    tokens = SPECIALS + [characters[b] for b in range(vocab_size - len(SPECIALS) - 1)] + ["th"]
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in enumerate(SPECIALS)]
    split = {"type": "Split", "pattern": {"Regex": BYTES_SPLIT}, "behavior": "Isolated",
             "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                        "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                      "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["t h"]}}


def random_model(folder, work, options):
    """A tiny random model of tests/data/families, with ids that depend on nothing but a seed."""
    copy = work / f"family-{folder.name}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    vocab_size = config["vocab_size"]
    (copy / "tokenizer.json").write_text(json.dumps(byte_tokenizer(vocab_size)))
    (copy / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[1]}))
    length = min(256, config["max_position_embeddings"])
    ids = np.random.default_rng(11).integers(len(SPECIALS), vocab_size, (40, length), np.int32)
    calibration = work / f"family-{folder.name}.npy"
    np.save(calibration, ids[:32])
    return Subject(folder.name, copy, calibration, 32, ids[32:], 32)


def all_subjects(options, work):
    for folder in options.models or []:
        yield trained_model(folder, options.calibration, options.token_ids, options)
    if options.families:
        for folder in sorted(p for p in options.families.iterdir() if p.is_dir()):
            yield random_model(folder, work, options)
