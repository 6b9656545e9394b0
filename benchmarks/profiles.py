"""Rounds that the latency predictor is trained on: where make leaves them, and the authors' own profiling.

What Tables 3 and 8 share; and what the paper's figures tell of its own rounds.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness.backends import JITTER
from benchmarks.harness.options import Options
from benchmarks.paper import paper
from predictor.collect import collect
from predictor.dataset import DatasetSettings, Split, prepare
from sarathi.config import BenchmarkConfig, config_from_args

DEVICE = "rtx_pro_5000_72gb"
PROFILES = ("lean", "sarathi_2024")  # of the simulated engine

# Test rounds of buckets of these sizes, if train, validation and test are 8:1:1 within each.
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a tenth, rounded half up (ours)": lambda sizes: (sizes + 5) // 10,
    "a tenth, rounded up": lambda sizes: -(-sizes // 10),
    "what train and validation, rounded down, leave": lambda sizes: sizes - 8 * sizes // 10 - sizes // 10,
}


def rounds_files(options: Options) -> dict[str, Path]:
    """Files of rounds by engine, there or not; on the first the backend's predictor is trained."""
    if options.backend == "sim":
        names = {profile: DEVICE if profile == "lean" else f"{DEVICE}--{profile}" for profile in PROFILES}
        return {profile: options.predictors / f"{name}.csv" for profile, name in names.items()}
    name = {"cpu": "rounds", "cuda": "cuda"}[options.backend]
    return {options.backend: options.results / "real" / f"{name}.csv"}


def read_rounds(path: Path, settings: DatasetSettings | None = None) -> Split:
    """The parts of a file of rounds. Raises SystemExit, a line, for one that is missing or of no use."""
    if not path.is_file():
        raise SystemExit(f"{path}: no such rounds; `make table8` collects them")
    try:
        return prepare(path, settings)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def collect_scripted(path: Path, profile: str) -> Path:
    """Rounds of the profiling that the authors' scripts do, on the simulated device, as a file; takes seconds."""
    prefix = "--simulated_executor_config"
    flags = [f"{prefix}_device={DEVICE}", f"{prefix}_engine_profile={profile}", f"{prefix}_jitter={JITTER}"]
    with contextlib.redirect_stdout(io.StringIO()):
        collect(config_from_args(flags, BenchmarkConfig, "benchmarks"), path, "paper", processes=1)
    return path


def parts(split: Split, what: str) -> np.ndarray:
    """Times or buckets of all rounds that a profile keeps."""
    return np.concatenate([getattr(part, what) for part in (split.train, split.validation, split.test)])


def bucket_sizes(split: Split) -> np.ndarray:
    return np.unique(parts(split, "buckets"), return_counts=True)[1]


def most_beyond_a_tenth(rounding: Callable[[np.ndarray], np.ndarray]) -> float:
    """The most test rounds that one bucket can have beyond a tenth of its rounds."""
    sizes = np.arange(10, 20)
    return float((10 * rounding(sizes) - sizes).max() / 10)


def beyond_a_tenth() -> float:
    """The paper's test rounds beyond a tenth of its profile."""
    return paper()["table3"]["test_samples"] - paper()["table3"]["offline_profiling_samples"] / 10


def paper_round_ms() -> float:
    """MAE over MAPE of Table 8: a mean of round times, weighted by their relative errors."""
    return 100 * paper()["table8"]["mae_ms"] / paper()["table8"]["mape_percent"]
