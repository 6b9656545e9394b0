"""`make gpu-check`: proves and measures on a CUDA GPU what tests on a CPU cannot, and prints one block of results.

Each section runs in a process of its own, within a budget of seconds: an error on the GPU ends only its section.
Where torch finds no CUDA device it exits with status 1 and one line.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib import metadata
from typing import NamedTuple

from benchmarks.gpu_check_setup import Report, dry_setup, real_setup
from sarathi.worker.cuda import has_cuda_device

PROGRAM = "python -m benchmarks.gpu_check"


class Section(NamedTuple):
    module: str  # of benchmarks
    seconds: int  # its budget
    title: str


# The first compiles FlashInfer's kernels, once a machine: with many cores a minute or two, beside what is counted here.
COMPILING_SECONDS = 420
SECTIONS = {
    "attention": Section("gpu_check_sections", 20, "FlashInfer = SDPA"),
    "tokens": Section("gpu_check_sections", 60, "tokens of the GPU = those of the CPU (SmolLM2)"),
    "rounds": Section("gpu_check_sections", 45, "rounds of a Qwen3-8B-shaped model, CUDA graphs on and off"),
    "overlap": Section("gpu_check_serving", 25, "overlap on and off (SmolLM2)"),
    "lprs": Section("gpu_check_serving", 90, "rounds collected, predictor trained, LPRS against static budgets"),
}


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if not (args.dry_run_on_cpu or has_cuda_device()):
        print("no CUDA device")
        return 1
    if args.section:
        return run_section(args.section, args.dry_run_on_cpu)
    lines = environment(args.dry_run_on_cpu)
    print("\n".join(lines), flush=True)
    num_failed = 0
    for name, section in SECTIONS.items():
        given, failed = _run_apart(name, section, args.dry_run_on_cpu)
        lines += given
        num_failed += failed
    verdict = f"{num_failed} of {len(SECTIONS)} sections failed" if num_failed else "all sections passed"
    print("\n".join(("", "=" * 40 + " results", *lines, verdict, "=" * 48)))
    return 1 if num_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    parser.add_argument("--section", choices=SECTIONS, help="only this one, in this process")
    parser.add_argument(
        "--dry-run-on-cpu", action="store_true", help="the same code on a CPU with a tiny model; shows nothing of a GPU"
    )
    return parser


def run_section(name: str, is_dry: bool) -> int:
    """Run one section here; 0 where all its checks passed."""
    with dry_setup() if is_dry else nullcontext(real_setup()) as setup:
        report = Report(setup)
        try:
            _function(name)(report)
        except Exception:  # whatever a section runs into is its result, told whole
            traceback.print_exc()
            report.check(name, False, "ended with the error above")
    return 1 if report.num_failed else 0


def _function(name: str) -> Callable[[Report], None]:
    module = __import__(f"benchmarks.{SECTIONS[name].module}", fromlist=[name])
    return getattr(module, name)


def _run_apart(name: str, section: Section, is_dry: bool) -> tuple[list[str], bool]:
    """What a section printed on stdout, told as it comes, and whether it failed.

    Processes that it started, such as one that collects rounds, end with it at the latest.
    """
    budget = section.seconds + (COMPILING_SECONDS if name == "attention" else 0)
    command = [sys.executable, "-m", "benchmarks.gpu_check", f"--section={name}"]
    command += ["--dry-run-on-cpu"] if is_dry else []
    started = time.perf_counter()
    lines = [f"-- {section.title}"]
    print(lines[0], flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        timer = threading.Timer(budget, _kill_session, [process.pid])
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
            status = process.wait()
        finally:  # on Ctrl-C too, which a session of its own does not get
            timer.cancel()
            _kill_session(process.pid)
    taken = time.perf_counter() - started
    lines.append(f"     {taken:.0f} s" if status in (0, 1) else f"FAIL {name}: {_end(status, taken, budget)}")
    print(lines[-1], flush=True)
    return lines, status != 0


def _kill_session(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _end(status: int, taken: float, budget: int) -> str:
    return f"stopped after its {budget} s" if taken >= budget else f"the process ended with status {status}"


def environment(is_dry: bool) -> list[str]:
    """Hardware and versions, a line each."""
    import torch

    versions = [f"{name} {_version(name)}" for name in ("torch", "flashinfer-python", "numpy")]
    software = f"Python {platform.python_version()}, {', '.join(versions)}, CUDA {torch.version.cuda}"
    if is_dry:
        return ["DRY RUN ON A CPU with a tiny model: no result of a GPU", software]
    gpu = torch.cuda.get_device_properties(0)
    hardware = f"{gpu.name}, {gpu.total_memory / (1 << 30):.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
    return [f"{hardware}; {platform.processor() or platform.machine()}", software]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the section that runs is ended first
    sys.exit(main())
