#!/usr/bin/env python3
"""Loads what Assay writes in the engines it is written for, and compares their NLL with ours.

For each model: quantizes it, converts it, scores the same token windows with `assay
verify-equivalence --write-reference` and with the engine, and compares token by token. Prints a
table and writes JSON. Ends with 1 if a mean differs by more than the limit or an engine fails.
See README.md beside this file.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

from subjects import all_subjects, read_tensor

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 5e-4  # nats per token
# Two nearly equal logits of a router send a token to another expert at the slightest rounding. Such
# tokens are counted, and left out of the mean, up to this share.
ROUTED_APART = 0.1  # nats
MOST_APART = 0.005
MODELS = [f"{family}-{size}" for family in ("llama", "gemma4", "qwen3_5")
          for size in ("tiny", "small")]


class Failure(Exception):
    pass


def run(command, **more):
    """Runs a command; returns its standard output, or raises Failure with the end of its errors."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        words = " ".join(str(c) for c in command)
        raise Failure(f"{words}\nended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


class Bench:
    """The program under test, the engines, and a folder for what they make."""

    def __init__(self, options):
        self.options = options
        self.work = options.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.threads = str(options.threads)
        self.llama_nll = None

    def assay(self, *words):
        return run([self.options.assay, *words, "--threads", self.threads, "--quiet"])

    def quantize(self, model, kind, *words):
        out = self.work / f"{model.name}-{kind}"
        if not (out.exists() and self.options.keep):
            self.assay("quantize", model.folder, "--out", out, "--force",
                       "--calibration", model.calibration, "--windows", model.n_calibration_windows,
                       "--group-size", model.group_size, *words)
        return out

    def convert(self, source, name, *words):
        out = self.work / f"{name}.gguf"
        if not (out.exists() and self.options.keep):
            self.assay("convert", source, "--to", "gguf", "--out", out, "--force", *words)
        return out

    def unpack(self, source, name):
        """A plain folder of what the codes mean, in F32."""
        out = self.work / name
        if not (out.exists() and self.options.keep):
            self.assay("convert", source, "--to", "hf", "--type", "F32", "--out", out, "--force")
        return out

    def ours(self, model, ids, kv_type):
        """Our NLL of every token of the windows, (n_windows, length - 1)."""
        folder = self.work / f"{model.name}.{kv_type}.reference"
        run(["rm", "-rf", folder])
        self.assay("verify-equivalence", model, "--write-reference", folder, "--token-ids", ids,
                   "--prompts", self.prompts(), "--windows", "0", "--new-tokens", "0",
                   "--kv-type", kv_type)
        return read_tensor(folder / "nll.safetensors", "nll", np.float32)

    def prompts(self):
        path = self.work / "prompts.json"
        path.write_text("[[0, 1, 2]]\n")
        return path

    def torch_scorer(self, python, script, *words):
        def score(model, windows, length):
            out = self.work / "engine.f32"
            text = run([python, HERE / script, model, windows, length, out,
                        "--threads", self.threads, *words])
            return np.fromfile(out, dtype=np.float32), json.loads(text.splitlines()[-1])
        return score

    def llama_cpp_scorer(self, dequantize):
        """dequantize: llama.cpp's own llama-quantize turns the file into F32 first."""
        def score(model, windows, length):
            if self.llama_nll is None:
                self.llama_nll = self.build_llama_nll()
            if dequantize:
                widened = self.work / "dequantized.gguf"
                run([self.options.llama_build / "bin/llama-quantize", "--allow-requantize", model,
                     widened, "F32", self.threads])
                model = widened
            out = self.work / "engine.f32"
            n = windows.stat().st_size // (4 * length)
            text = run([self.llama_nll, model, windows, n, length, self.threads, out])
            version = json.loads(text)["version"]
            return np.fromfile(out, dtype=np.float32), {"versions": {"llama.cpp": version}}
        return score

    def build_llama_nll(self):
        """Compiles llama_nll.cpp against a llama.cpp build folder and its source folder."""
        source, build = self.options.llama_source, self.options.llama_build
        program = self.work / "llama_nll"
        shared = build / "bin"
        if (shared / "libllama.so").exists():
            libraries = [f"-L{shared}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{shared}"]
        else:  # BUILD_SHARED_LIBS=OFF
            ggml = build / "ggml/src"
            libraries = [build / "src/libllama.a", ggml / "libggml.a", ggml / "libggml-cpu.a",
                         ggml / "libggml-base.a", "-fopenmp", "-lpthread", "-ldl"]
        run(["g++", "-std=c++17", "-O2", f"-I{source}/include", f"-I{source}/ggml/include",
             HERE / "llama_nll.cpp", "-o", program, *libraries])
        return program


def cases(bench, model):
    """(name, what to load, our KV type, scorer) for one subject. Our KV type is the engine's."""
    options = bench.options
    group = f"g{model.group_size}"
    if options.python_transformers:
        scorer = bench.torch_scorer(options.python_transformers, "score_transformers.py")
        for scheme in ("W4A16_ASYM", "W4A16"):
            def folder(scheme=scheme):
                return bench.quantize(model, scheme, "--scheme", scheme)
            name = f"compressed-tensors {scheme} {group}"
            if not model.has_experts:
                yield name, folder, "f32", scorer
                continue
            yield f"{name}, packed experts", folder, "f32", scorer

            def plain(scheme=scheme, folder=folder):
                return bench.unpack(folder(), f"{model.name}-{scheme}-plain")
            yield f"{name}, dequantized", plain, "f32", bench.torch_scorer(
                options.python_transformers, "score_transformers.py", "--plain")
    if options.python_gptqmodel:
        def gptq():
            return bench.quantize(model, "gptq", "--scheme", "W4A16", "--format", "gptq")
        for kernel in ("dequantized", "native"):
            scorer = bench.torch_scorer(options.python_gptqmodel, "score_gptqmodel.py",
                                        "--kernel", kernel)
            yield f"gptq v1 W4A16 {group}, {kernel}", gptq, "f32", scorer
    if options.llama_build:
        gguf = {}
        for scheme in ("W4A16_ASYM", "W4A16"):
            def repacked(scheme=scheme):
                folder = bench.quantize(model, scheme, "--scheme", scheme)
                return bench.convert(folder, f"{model.name}-{scheme}")
            gguf[f"gguf from {scheme} {group}"] = repacked
        for kind in ("F32", "F16", "BF16", "Q8_0"):
            def plain(kind=kind):
                return bench.convert(model.folder, f"{model.name}-{kind}", "--type", kind)
            gguf[f"gguf {kind}"] = plain
        for name, make in gguf.items():
            yield name, make, "f16", bench.llama_cpp_scorer(dequantize=False)
            if is_rounded_by_llama_cpp(name):
                yield name + ", dequantized", make, "f16", bench.llama_cpp_scorer(dequantize=True)


def is_rounded_by_llama_cpp(name):
    """Its kernels for these types round the inputs of linears to 8 bits, f16 or bf16; ours to
    integers of 16 bits."""
    return "from W" in name or name.endswith("Q8_0") or name.endswith("F16")


def is_informative(name):
    """Engines that round activations more coarsely than ours: what they compute is not the file's
    meaning alone, so the figure is shown but decides nothing; the same file decides dequantized."""
    if name.endswith("dequantized"):
        return False
    if name.endswith("packed experts"):
        return True  # transformers rounds them to bf16, or cannot load them (README.md)
    return name.endswith("native") or (name.startswith("gguf") and is_rounded_by_llama_cpp(name))


def compare(bench, model, name, make, kv_type, scorer, windows):
    ids_file, raw_file, length = windows
    row = {"model": model.name, "case": name, "kv_type_of_assay": kv_type}
    try:
        artefact = make()
        ours = bench.ours(artefact, ids_file, kv_type).astype(np.float64)
        theirs, details = scorer(artefact, raw_file, length)
        theirs = theirs.astype(np.float64).reshape(ours.shape)
        difference = theirs - ours
        row.update(details)
        row.update(n_tokens=int(ours.size), nll_assay=float(ours.mean()),
                   nll_engine=float(theirs.mean()), mean_difference=float(difference.mean()),
                   largest_window_difference=float(np.abs(difference.mean(axis=1)).max()),
                   rms_difference=float(np.sqrt((difference**2).mean())),
                   largest_difference=float(np.abs(difference).max()))
        mean = row["mean_difference"]
        if model.has_experts:
            apart = np.abs(difference) > ROUTED_APART
            row.update(n_apart=int(apart.sum()), mean_of_others=float(difference[~apart].mean()))
            mean = row["mean_of_others"] if apart.mean() <= MOST_APART else mean
        within = abs(mean) <= LIMIT
        verdict = "equal" if within else "DIFFERENT"
        row["verdict"] = f"({verdict.lower()})" if is_informative(name) else verdict
    except (Failure, OSError, ValueError) as error:
        verdict = "(failed)" if is_informative(name) else "FAILED"
        row.update(verdict=verdict, error=str(error))
    return row


def write_windows(bench, ids):
    raw = bench.work / "windows.i32"
    ids.tofile(raw)
    listed = bench.work / "windows.json"
    listed.write_text(json.dumps(ids.tolist()))
    return listed, raw, ids.shape[1]


def print_table(rows):
    print(f"{'model':<12} {'case':<36} {'ours':>9} {'engine':>9} {'mean diff':>10} "
          f"{'rms diff':>9} {'largest':>9}  verdict")
    for row in rows:
        if "error" in row:
            print(f"{row['model']:<12} {row['case']:<36} {row['verdict']}\n{row['error']}")
            continue
        print(f"{row['model']:<12} {row['case']:<36} {row['nll_assay']:9.5f} "
              f"{row['nll_engine']:9.5f} {row['mean_difference']:10.1e} "
              f"{row['rms_difference']:9.1e} {row['largest_difference']:9.1e}  {row['verdict']}"
              + (f", {row['n_apart']} tokens apart, mean of the others "
                 f"{row['mean_of_others']:.1e}" if row.get("n_apart") else ""))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = pathlib.Path
    shared = path(os.environ["ASSAY_SHARED"]) if "ASSAY_SHARED" in os.environ else None
    parser.add_argument("--assay", type=path, required=True, help="the program")
    parser.add_argument("--models", type=path, nargs="*", help="folders; default: all of "
                        "ASSAY_SHARED", default=shared and [shared / "models" / n for n in MODELS])
    parser.add_argument("--families", type=path, help="folder of tiny random models, too: "
                        "tests/data/families")
    parser.add_argument("--calibration", type=path, help="of the models; default: of ASSAY_SHARED")
    parser.add_argument("--calibration-windows", type=int, default=32)
    parser.add_argument("--token-ids", type=path, help="safetensors with token_ids (n_windows, "
                        "length) int32; default: the references of ASSAY_SHARED")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--work", type=path, default=path("interop-out"))
    parser.add_argument("--keep", action="store_true", help="use models made by an earlier run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python-transformers", type=path, help="python of an environment with "
                        "requirements-transformers.txt; without it, those cases are left out")
    parser.add_argument("--python-gptqmodel", type=path, help="likewise, requirements-gptqmodel.txt")
    parser.add_argument("--llama-source", type=path, help="source folder of llama.cpp")
    parser.add_argument("--llama-build", type=path, help="its build folder")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    options.shared = shared
    if not (options.models or options.families):
        parser.error("set ASSAY_SHARED, or give --models or --families")
    for name in ("assay", "python_transformers", "python_gptqmodel", "llama_source", "llama_build"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).absolute())
    return options


def main():
    options = parse_arguments()
    bench = Bench(options)
    rows = []
    for model in all_subjects(options, bench.work):
        windows = write_windows(bench, model.windows)
        for name, make, kv_type, scorer in cases(bench, model):
            if options.only in name:
                rows.append(compare(bench, model, name, make, kv_type, scorer, windows))
                print(f"{model.name}: {name}: {rows[-1]['verdict']}", file=sys.stderr)
    if not rows:
        raise SystemExit("no engine given: nothing was compared")
    print_table(rows)
    result = {"assay": json.loads(run([options.assay, "version", "--json"])),
              "limit_nats_per_token": LIMIT, "windows": options.windows, "rows": rows}
    (options.work / "interop.json").write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        if "versions" in row:
            row["versions"] = tuple(sorted(row["versions"].items()))
    for versions in sorted({row["versions"] for row in rows if "versions" in row}):
        print(", ".join(f"{name} {version}" for name, version in versions))
    return 1 if any(row["verdict"] in ("DIFFERENT", "FAILED") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
