"""GPTQ of GPTQModel with its default options, 4 bits, g128: MODEL IDS.npy OUT THREADS [sym|asym].

Prints what the quantization alone took (CPU seconds), without imports, loading and saving.
"""

import json
import os
import resource
import sys

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # it does not start on two cores without

import measure
import numpy as np
import torch
from gptqmodel import GPTQModel, QuantizeConfig


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    model_folder, ids_file, out, threads = sys.argv[1:5]
    symmetric = len(sys.argv) <= 5 or sys.argv[5] == "sym"
    torch.set_num_threads(int(threads))
    rows = [
        {"input_ids": row.tolist(), "attention_mask": [1] * len(row)}
        for row in np.load(ids_file)
    ]
    config = QuantizeConfig(bits=4, group_size=128, sym=symmetric, device="cpu")
    dtype = torch.bfloat16 if measure.multiplies_bf16() else torch.float32
    model = GPTQModel.load(model_folder, config, dtype=dtype)
    start = cpu_seconds()
    model.quantize(rows, batch_size=1)
    quantize_cpu_s = cpu_seconds() - start
    model.save(out)
    print(json.dumps({"quantize_cpu_s": quantize_cpu_s}))


if __name__ == "__main__":
    main()
