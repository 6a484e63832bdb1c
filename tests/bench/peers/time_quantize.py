#!/usr/bin/env python3
"""Times `assay quantize` against llm-compressor and GPTQModel, one after another in one run.

The same model, calibration ids and number of threads. The figure that counts is CPU seconds (user
and system), because wall times of a machine with other work mean little; the load stands beside
them. Ours is the whole command, reading and writing included; the peers' is their quantization call
alone, without Python's imports, loading and saving. Ends with 1 if ours is not 1.2 times faster
than the better peer or takes more than 1.15 times the memory that --dry-run says.
"""

import argparse
import json
import pathlib
import re
import sys

import measure

HERE = pathlib.Path(__file__).resolve().parent
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def dry_run_mib(text):
    found = re.search(r"^memory\s+([\d.]+) (\w+)", text, re.MULTILINE)
    return float(found[1]) * UNITS[found[2]] / 2**20


def runners(options):
    """name → a function that runs the tool once and returns its row."""
    common = [options.model, options.calibration]
    most = ["--windows", options.windows]
    threads = str(options.threads)

    def assay():
        words = [options.assay, "quantize", options.model, "--calibration", options.calibration,
                 "--out", options.work / "assay", "--threads", threads, "--quiet", "--force", *most,
                 *options.recipe.split()]
        expected = dry_run_mib(measure.run([*words, "--dry-run"])["stdout"])
        row = measure.run(words)
        return {**row, "quantize_cpu_s": row["cpu_s"], "dry_run_mib": expected}

    def peer(python, script):
        def once():
            out = options.work / script
            row = measure.run([python, HERE / script, *common, out, threads],
                              {"OMP_NUM_THREADS": threads, "GPTQMODEL_CPU_WORKERS": threads})
            return {**row, **json.loads(row["stdout"].splitlines()[-1])}
        return once

    tools = {"assay": assay}
    if options.python_llmcompressor:
        tools["llm-compressor"] = peer(options.python_llmcompressor.absolute(), "llmcompressor_quantize.py")
    if options.python_gptqmodel:
        tools["GPTQModel"] = peer(options.python_gptqmodel.absolute(), "gptqmodel_quantize.py")
    return tools


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = pathlib.Path
    parser.add_argument("--assay", type=path, required=True)
    parser.add_argument("--model", type=path, required=True)
    parser.add_argument("--calibration", type=path, required=True, help="ids, .npy (windows, length)")
    parser.add_argument("--python-llmcompressor", type=path)
    parser.add_argument("--python-gptqmodel", type=path)
    parser.add_argument("--recipe", default="--recipe plain --scales grid", help="options of "
                        "assay quantize; by default the steps that the peers take")
    parser.add_argument("--windows", type=int, default=128, help="of ours; peers take all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--work", type=path, default=path("peers-out"))
    options = parser.parse_args()
    options.assay = options.assay.absolute()
    options.work.mkdir(parents=True, exist_ok=True)

    rows = []
    for repeat in range(options.repeats):
        for name, once in runners(options).items():
            row = {"tool": name, "repeat": repeat, **once()}
            row.pop("stdout")
            rows.append(row)
            print(f"{name:<16} quantize {row['quantize_cpu_s']:7.1f} CPU s, whole command "
                  f"{row['cpu_s']:7.1f} CPU s, {row['wall_s']:7.1f} s wall, "
                  f"{row['peak_mib']:6.0f} MiB, load {row['load_before']} to {row['load_after']}",
                  flush=True)
    cpu = {r["tool"]: measure.median([x["quantize_cpu_s"] for x in rows if x["tool"] == r["tool"]])
           for r in rows}
    memory = max(r["peak_mib"] / r["dry_run_mib"] for r in rows if r["tool"] == "assay")
    print(f"peak memory of assay: {memory:.3f} of what --dry-run says")
    ratio = None
    if len(cpu) > 1:
        ratio = min(v for k, v in cpu.items() if k != "assay") / cpu["assay"]
        print(f"the better peer takes {ratio:.2f} times our CPU seconds")
    result = {"model": str(options.model), "threads": options.threads, "rows": rows,
              "speedup": ratio, "memory_of_dry_run": memory}
    (options.work / "quantize.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if memory <= 1.15 and (ratio is None or ratio >= 1.2) else 1


if __name__ == "__main__":
    sys.exit(main())
