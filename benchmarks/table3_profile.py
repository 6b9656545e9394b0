"""The part of Table 3 on the predictor's profile: its rounds, its test part, and whose rounds the paper's can be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.harness.options import Options
from benchmarks.harness.report import Report
from benchmarks.harness.statistics import level
from benchmarks.paper import paper
from benchmarks.profiles import PROFILES, collect_scripted, paper_round_ms, read_rounds, rounds_files
from predictor.dataset import DatasetSettings, Split

# Test rounds of buckets of these sizes, if train, validation and test are 8:1:1 within each.
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a tenth, rounded half up (ours)": lambda sizes: (sizes + 5) // 10,
    "a tenth, rounded up": lambda sizes: -(-sizes // 10),
    "what train and validation, rounded down, leave": lambda sizes: sizes - 8 * sizes // 10 - sizes // 10,
}


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


def prepare_profiles(options: Options) -> dict[str, Split]:
    """Each profile that is there, and on the simulated device the scripted ones."""
    files = {} if options.quick else {name: path for name, path in rounds_files(options).items() if path.is_file()}
    splits = {name: read_rounds(path) for name, path in files.items()}
    if options.backend != "sim":
        return splits
    with tempfile.TemporaryDirectory() as folder:
        for profile in PROFILES[: 1 if options.quick else None]:
            path = collect_scripted(Path(folder, f"{profile}.csv"), profile)
            splits[f"{profile}, scripted"] = read_rounds(path, DatasetSettings(decode_only_ratio=None))
    return splits


def missing(options: Options) -> list[str]:
    """What is to be said of profiles that are not there."""
    return [
        f"No profile {name}: {path.name} is not there; `make table8` collects it."
        for name, path in rounds_files(options).items()
        if not options.quick and not path.is_file()
    ]


def add_profiles(report: Report, splits: Mapping[str, Split]) -> None:
    columns = ("read", "dropped_warmup", "dropped_outlier", "dropped_full_chunk", "dropped_decode_only",
               "dropped_subsample", "kept", "train", "validation", "test")  # fmt: skip
    rows = [
        [
            name,
            *(split.counts.get(column, 0) for column in columns),
            f"{100 * split.counts['test'] / split.counts['kept']:.3f}",
            len(bucket_sizes(split)),
            f"{1e3 * parts(split, 'times').mean():.1f} / {1e3 * parts(split, 'times').max():.1f}",
        ]
        for name, split in splits.items()
    ]
    report.add_table(
        "Profiles of rounds",
        ["profile", "collected", "warm-up", "outliers", "full chunks", "decode only", "drawn off", "kept", "train",
         "validation", "test", "test %", "buckets", "mean / longest ms"],
        rows,
        note="""From 'warm-up' to 'drawn off': rounds dropped, in this order; decode only: rounds without prefill beyond
        as many as there are with some, of which the paper does not speak; scripted profiles keep them.""",
    )  # fmt: skip
    report.add_table(
        "The test part by how a tenth of a bucket is rounded",
        ["test part of a bucket", "a bucket adds at most", "buckets needed", *splits],
        [
            [
                name,
                most_beyond_a_tenth(rounding),
                int(np.ceil(beyond_a_tenth() / most_beyond_a_tenth(rounding))),
                *(_test_rounds(rounding, split) for split in splits.values()),
            ]
            for name, rounding in ROUNDINGS.items()
        ],
        note=f"""The paper's test part, {paper()["table3"]["test_samples"]:,} rounds, has {beyond_a_tenth():.1f} beyond
        a tenth; 'buckets needed' give as many. Columns of profiles: test rounds that each would give.""",
    )
    _add_possible(report, splits)


def _add_possible(report: Report, splits: Mapping[str, Split]) -> None:
    """Whether the paper's test part and errors can come from rounds like these."""
    rows, told = [], []
    for name, split in splits.items():
        most = len(bucket_sizes(split)) * max(map(most_beyond_a_tenth, ROUNDINGS.values()))
        times = 1e3 * parts(split, "times")
        lacks = [
            what
            for what, possible in (
                ("number of rounds", split.counts["kept"] >= paper()["table3"]["offline_profiling_samples"]),
                ("test part", beyond_a_tenth() <= most),
                ("round time", times.min() <= paper_round_ms() <= times.max()),
            )
            if not possible
        ]
        rows.append([name, split.counts["kept"], f"at most {most:.1f}", f"{times.min():.1f} to {times.max():.1f}"])
        told.append(f"'{name}': {', '.join(lacks) or 'none'}")
    theirs = ["the paper", paper()["table3"]["offline_profiling_samples"], f"{beyond_a_tenth():.1f}"]
    report.add_table(
        "Whether the paper's profile can be such rounds",
        ["profile", "rounds kept", "test rounds beyond a tenth", "round times ms"],
        [[*theirs, f"{paper_round_ms():.1f} among them"], *rows],
        note=f"""beyond a tenth: what its buckets allow with the most generous rounding. Table 8's MAE over its MAPE,
        {paper_round_ms():.1f} ms, is a mean of the times of the paper's test rounds, weighted by relative errors: it
        lies between the shortest and the longest of them. What is impossible, {"; ".join(told)}.""",
    )


def add_test_part(report: Report, name: str, split: Split) -> None:
    """The test rounds as the shipped rule splits; beyond a tenth, as the rest is the number of rounds over ten."""
    tests, kept, theirs = split.counts["test"], split.counts["kept"], paper()["table3"]["test_samples"]
    beyond = tests - kept / 10
    report.add_claim(
        "test rounds beyond a tenth of the profile, within 10 %",
        f"{beyond_a_tenth():+.1f} ({theirs:,})",
        f"{beyond:+.1f} ({tests:,}, profile {name})",
        level([beyond_a_tenth()], [beyond]),
    )


def _test_rounds(rounding: Callable[[np.ndarray], np.ndarray], split: Split) -> int:
    return int(rounding(bucket_sizes(split)).sum())
