#!/usr/bin/env python3
"""Times `assay bench` against llama-bench on GGUF files, interleaved, with equal threads.

One thread is compared by CPU time, which other work on the machine hardly touches: the difference
between a run of few and one of more repeats, so that loading and warming up cancel out. More
threads are compared by tokens per second of the best of the interleaved rounds, since threads that
wait for one another burn CPU time on a machine with other work. Ends with 1 if ours decodes slower
or prefills at less than half the speed.
"""

import argparse
import json
import pathlib
import sys

import measure

LEAST = {"decode": 1.0, "prefill": 0.5}


def tokens_of(options, what):
    return options.decode_tokens if what == "decode" else options.prefill_tokens


def assay_words(options, what, model, threads, repeats):
    return [options.assay, "bench", what, model, "--tokens", tokens_of(options, what), "--repeats", repeats,
            "--threads", threads, "--json", "--quiet"]


def llama_words(options, what, model, threads, repeats):
    n = tokens_of(options, what)
    prompt, new = (0, n) if what == "decode" else (n, 0)
    return [options.llama_bench, "-m", model, "-p", prompt, "-n", new, "-t", threads,
            "-r", repeats, "-o", "json"]


def assay_speed(text):
    return json.loads(text)["tokens_per_s"]


def llama_speed(text):
    return json.loads(text)[0]["avg_ts"]


TOOLS = {"assay": (assay_words, assay_speed), "llama.cpp": (llama_words, llama_speed)}


def cpu_of(options, tool, what, model):
    """Tokens per CPU second on one thread."""
    words = TOOLS[tool][0]
    few, more = options.few_repeats, options.few_repeats + options.more_repeats
    short = measure.run(words(options, what, model, 1, few))["cpu_s"]
    long = measure.run(words(options, what, model, 1, more))["cpu_s"]
    return options.more_repeats * tokens_of(options, what) / (long - short)


def speed_of(options, tool, what, model, threads):
    words, speed = TOOLS[tool]
    return speed(measure.run(words(options, what, model, threads, 1))["stdout"])


def compare(options, what, model, threads):
    best = {tool: [] for tool in TOOLS}
    load = [measure.load()]
    for _ in range(options.rounds):
        for tool in TOOLS:
            if threads == 1:
                best[tool].append(cpu_of(options, tool, what, model))
            else:
                best[tool].append(speed_of(options, tool, what, model, threads))
        load.append(measure.load())
    pick = measure.median if threads == 1 else max
    ours, theirs = (pick(best[tool]) for tool in TOOLS)
    return {"file": model.name, "what": what, "threads": threads,
            "unit": "tokens per CPU second, median" if threads == 1 else "tokens/s, best",
            "assay": ours, "llama.cpp": theirs, "ratio": ours / theirs, "least": LEAST[what],
            "rounds": best, "load": [min(load), max(load)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = pathlib.Path
    parser.add_argument("--assay", type=path, required=True)
    parser.add_argument("--llama-bench", type=path, required=True)
    parser.add_argument("--models", type=path, nargs="+", required=True, help="GGUF files")
    parser.add_argument("--what", nargs="+", default=list(LEAST))
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--prefill-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--few-repeats", type=int, default=1)
    parser.add_argument("--more-repeats", type=int, default=2)
    parser.add_argument("--out", type=path, default=path("peers-out/forward.json"))
    options = parser.parse_args()
    options.assay = options.assay.absolute()
    options.llama_bench = options.llama_bench.absolute()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for what in options.what:
        for threads in options.threads:
            for model in options.models:
                row = compare(options, what, model, threads)
                rows.append(row)
                print(f"{row['file']:<22} {what:<8} {threads} threads: {row['assay']:8.2f} against "
                      f"{row['llama.cpp']:8.2f} {row['unit']}, ratio {row['ratio']:.2f}, "
                      f"load {row['load'][0]} to {row['load'][1]}", flush=True)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["ratio"] >= row["least"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
