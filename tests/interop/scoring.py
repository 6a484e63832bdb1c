"""What the scorers of PyTorch engines share: token windows in, NLL of every token out.

Both files are raw: windows (n_windows, length) int32, result (n_windows, length - 1) fp32. Row r is
-log p(token r + 1 | tokens 0 ... r), from fp32 logits, log-sum-exp in fp64.
"""

import argparse
import importlib.metadata
import json

import numpy as np
import torch


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("windows")
    parser.add_argument("length", type=int)
    parser.add_argument("out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernel", default="dequantized")
    parser.add_argument("--plain", action="store_true", help="expect no quantized linear")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def score(model, options):
    """Scores with `model`, a causal language model of transformers."""
    windows = np.fromfile(options.windows, dtype=np.int32).reshape(-1, options.length)
    rows = []
    with torch.inference_mode():
        for window in windows:
            ids = torch.from_numpy(window.astype(np.int64))
            logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
            log_sum = torch.logsumexp(logits[:-1].double(), dim=-1)
            target = logits[:-1].gather(1, ids[1:, None])[:, 0].double()
            rows.append((log_sum - target).float().numpy())
    np.stack(rows).tofile(options.out)


def report(packages, **more):
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({"versions": versions, **more}))
