"""Rounds that the latency predictor is trained on: where make leaves them, and the authors' own profiling.

What Tables 3 and 8 share.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from benchmarks.harness.backends import JITTER
from benchmarks.harness.options import Options
from benchmarks.paper import paper
from predictor.collect import collect
from predictor.dataset import DatasetSettings, Split, prepare
from sarathi.config import BenchmarkConfig, config_from_args
from sarathi.errors import InputError

DEVICE = "rtx_pro_5000_72gb"
PROFILES = ("lean", "sarathi_2024")  # of the simulated engine


def rounds_files(options: Options) -> dict[str, Path]:
    """Files of rounds by engine, there or not; on the first the backend's predictor is trained."""
    if options.backend == "sim":
        return {profile: options.profiled(DEVICE, profile) for profile in PROFILES}
    return {options.backend: options.profiled(DEVICE, "lean")}


def read_rounds(path: Path, settings: DatasetSettings | None = None) -> Split:
    """The parts of a file of rounds. Raises InputError, a line, for one that is missing or of no use."""
    if not path.is_file():
        raise InputError(f"{path}: no such rounds; `make table8` collects them")
    try:
        return prepare(path, settings)
    except ValueError as error:
        raise InputError(str(error)) from None


def collect_scripted(path: Path, profile: str) -> Path:
    """Rounds of the profiling that the authors' scripts do, on the simulated device, as a file; takes seconds."""
    prefix = "--simulated_executor_config"
    flags = [f"{prefix}_device={DEVICE}", f"{prefix}_engine_profile={profile}", f"{prefix}_jitter={JITTER}"]
    with contextlib.redirect_stdout(io.StringIO()):
        collect(config_from_args(flags, BenchmarkConfig, "benchmarks"), path, "paper", processes=1)
    return path


def paper_round_ms() -> float:
    """MAE over MAPE of Table 8: a mean of round times, weighted by their relative errors."""
    return 100 * paper()["table8"]["mae_ms"] / paper()["table8"]["mape_percent"]
