"""Runs commands one after another and says what each took: used by the scripts beside this file."""

import os
import subprocess
import tempfile
import time


def load():
    """Processes that wanted a core over the last minute: how far wall times can be trusted."""
    return round(os.getloadavg()[0], 1)


def multiplies_bf16():
    """Whether the processor multiplies bf16; where it does not, PyTorch is many times faster in fp32."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return not {"avx512_bf16", "amx_bf16"}.isdisjoint(file.read().split())


def run(command, environment=None):
    """CPU seconds, wall seconds, peak memory and standard output of one command and its children."""
    merged = {**os.environ, **(environment or {})}
    before, start = load(), time.monotonic()
    with tempfile.TemporaryFile("w+") as out_file, tempfile.TemporaryFile("w+") as error_file:
        child = subprocess.Popen([str(c) for c in command], stdout=out_file, stderr=error_file,
                                 env=merged)
        _, status, usage = os.wait4(child.pid, 0)  # the figures of this child alone
        for file in (out_file, error_file):
            file.seek(0)
        out, errors = out_file.read(), error_file.read()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        words = " ".join(str(c) for c in command)
        raise SystemExit(f"{words}\nended with {child.returncode}\n{errors[-3000:]}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.monotonic() - start,
            "peak_mib": usage.ru_maxrss / 1024, "load_before": before, "load_after": load(),
            "stdout": out}


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
