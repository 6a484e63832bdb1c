"""GPTQ of llm-compressor, W4A16 asymmetric g128: MODEL IDS.npy OUT THREADS [SCHEME].

Prints what the quantization alone took (CPU seconds), without imports, loading and saving.
"""

import json
import resource
import sys

import measure
import numpy as np
import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from transformers import AutoModelForCausalLM


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    model_folder, ids_file, out, threads = sys.argv[1:5]
    scheme = sys.argv[5] if len(sys.argv) > 5 else "W4A16_ASYM"
    torch.set_num_threads(int(threads))
    ids = np.load(ids_file)
    rows = [{"input_ids": row.tolist(), "attention_mask": [1] * len(row)} for row in ids]
    dtype = torch.bfloat16 if measure.multiplies_bf16() else torch.float32
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
    start = cpu_seconds()
    oneshot(
        model=model,
        dataset=Dataset.from_list(rows),
        recipe=GPTQModifier(
            targets="Linear", scheme=scheme, ignore=["lm_head"], dampening_frac=0.01
        ),
        max_seq_length=ids.shape[1],
        num_calibration_samples=ids.shape[0],
        shuffle_calibration_samples=False,
    )
    quantize_cpu_s = cpu_seconds() - start
    model.save_pretrained(out, save_compressed=True)
    print(json.dumps({"quantize_cpu_s": quantize_cpu_s}))


if __name__ == "__main__":
    main()
