"""Scores token windows with transformers + compressed-tensors: weights as the folder stores them,
widened to fp32, everything in fp32, eager attention. See scoring.py for the files."""

import torch
from transformers import AutoModelForCausalLM

import scoring


def main():
    options = scoring.arguments()
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    n_quantized = sum(hasattr(m, "quantization_scheme") for m in model.modules())
    if n_quantized == 0 and not options.plain:
        raise SystemExit(f"{options.model}: transformers saw no quantized linear")
    scoring.score(model, options)
    scoring.report(["torch", "transformers", "compressed-tensors"], n_quantized=n_quantized)


if __name__ == "__main__":
    main()
