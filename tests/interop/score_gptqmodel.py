"""Scores token windows with GPTQModel. See scoring.py for the files.

--kernel native: its own CPU kernel in 16-bit arithmetic, whose rounding is part of the result.
--kernel dequantized: the weights as GPTQModel unpacks them, in fp32 linears: what the file means.
"""

import os

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # it does not start on two cores without
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # else minutes of compiling before the first token

import torch
from gptqmodel import BACKEND, GPTQModel
from gptqmodel.nn_modules.qlinear import BaseQuantLinear

import scoring


def unpack(model):
    """Puts fp32 linears in place of all quantized ones; returns how many there were."""
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, BaseQuantLinear)]
    for name, module in found:
        weight = module.dequantize_weight().T.float().contiguous()  # (out, in)
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=module.bias is not None)
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        if module.bias is not None:
            linear.bias = torch.nn.Parameter(module.bias.float(), requires_grad=False)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, linear)
    return len(found)


def main():
    options = scoring.arguments()
    loaded = GPTQModel.load(
        options.model, device="cpu", backend=BACKEND.GPTQ_TORCH, dtype=torch.float16
    )
    model = loaded.model
    model.eval()
    n_quantized = sum(isinstance(m, BaseQuantLinear) for m in model.modules())
    if n_quantized == 0:
        raise SystemExit(f"{options.model}: GPTQModel saw no quantized linear")
    if options.kernel == "dequantized":
        unpack(model)
        model.float()
    scoring.score(model, options)
    scoring.report(["torch", "transformers", "gptqmodel"], n_quantized=n_quantized)


if __name__ == "__main__":
    main()
