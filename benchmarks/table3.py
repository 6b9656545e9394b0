"""`make table3`: statistics of our workloads and of the predictor's profile beside the paper's (Table 3).

The paper gives the Aging workload's median and P90 in its text, the rest in the table. No request is served here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.backends import CPU, CUDA
from benchmarks.harness.cases import Workload, sharegpt
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.report import Report
from benchmarks.harness.statistics import Mean, mean_of, verdict
from benchmarks.paper import paper
from benchmarks.profiles import (
    PROFILES,
    ROUNDINGS,
    beyond_a_tenth,
    bucket_sizes,
    collect_scripted,
    most_beyond_a_tenth,
    paper_round_ms,
    parts,
    read_rounds,
    rounds_files,
)
from benchmarks.table4 import FULL, NATURAL
from predictor.dataset import BUCKET_TOKENS, DatasetSettings, Split
from sarathi.benchmark.build import build_workload
from sarathi.config import parse_args

Figures = dict[str, float]

AGING_200, LPRS_HIGH, LPRS_REGULAR, APC_1000 = "Aging, 200", "LPRS, high load", "LPRS, regular load", "APC, 1,000"


def _aging(name: str, num_requests: int, **settings: object) -> Workload:
    return sharegpt(name, num_requests, 0.1, reduced={}, max_output_tokens=512, **settings)


def _lprs(name: str, interval: float) -> Workload:
    lengths = {"max_prompt_tokens": 4096, "max_output_tokens": 2048}
    return sharegpt(name, 1000, interval, reduced={}, shuffle=True, seed=42, **lengths)


def _apc(num_requests: int) -> Workload:
    flag = "--heterogeneous_request_generator_config_num_requests"
    kind = "--request_generator_config_type=HETEROGENEOUS"
    return Workload("APC", (kind, f"{flag}={num_requests}"))


WORKLOADS: dict[str, Workload] = {
    "Aging, 100": _aging("Aging, 100", 100, max_prompt_tokens=512),
    AGING_200: NATURAL,
    "Aging, 200, none left out": _aging("none left out", 200),
    "Aging, 200 drawn": _aging("drawn", 200, max_prompt_tokens=512, shuffle=True),
    "Aging, 200 with history": _aging("with history", 200, max_prompt_tokens=512, turns="all"),
    "Table 4's 'full'": FULL,
    LPRS_HIGH: _lprs(LPRS_HIGH, 0.1),
    LPRS_REGULAR: _lprs(LPRS_REGULAR, 1.0),
    "APC, 240": _apc(240),
    APC_1000: _apc(1000),
}

ASSUMPTIONS = (
    "Aging: the first human turn of the first conversations in file order, as raw text; prompts of more than 512 "
    "tokens are left out, as an engine with a context of 512 ignores them. Outputs are as long as the real answers, at "
    "most 512 tokens. Other readings of '200 requests': nothing left out; 200 drawn by the seed; every turn with its "
    "history before it.",
    "LPRS: 1,000 first turns drawn with seed 42, prompts of at most 4,096 tokens, outputs of at most 2,048.",
    "APC: short prompts with long outputs, and for every 49 of them a long prompt with a short output; 240 requests as "
    "scripted, and 1,000 as the level of Table 10 needs.",
    "± is half the 95 % interval over seeds, where a seed draws the workload.",
    f"Profile: cleaned, thinned and split 8:1:1 within each bucket of {BUCKET_TOKENS} scheduled tokens; so the test "
    "part is not exactly a tenth, but depends on what a division leaves. 'scripted' are the authors' profiling runs: "
    "chunk 256, 32 seqs, 2,000 first turns at once and 1,000 every 0.1 s, outputs as long as the real answers. "
    "'possible' and 'impossible' are said of such rounds on the simulated device.",
)

STATISTICS: dict[str, Callable[[np.ndarray], Any]] = {
    "median": np.median,
    "p90": lambda values: np.percentile(values, 90),
    "mean": np.mean,
    "max": np.max,
}
LENGTHS = ("prompt", "output")
LABELS = ("median", "P90", "mean", "max")
NOT = "not reproduced"


def measure(workload: Workload, options: Options) -> list[Figures]:
    """Statistics of the requests, by seed; of all of them on every backend, as none is served."""
    flags = [*workload.flags, *(f"{flag}={seconds:g}" for flag, seconds in workload.intervals.items())]
    if "--request_generator_config_type=SHAREGPT" in flags:  # the others have no texts, and so no tokenizer
        flags += {"sim": (), "cpu": CPU, "cuda": CUDA}[options.backend]
    return [_figures([*flags, f"--seed={seed}"]) for seed in options.seeds]


def _figures(flags: Sequence[str]) -> Figures:
    config = parse_args(flags)
    requests = build_workload(config).requests
    prompts = np.array([request.num_prompt_tokens for request in requests])
    lengths = {"prompt": prompts, "output": np.array([request.num_output_tokens for request in requests])}
    classes = {name: prompts[[request.tenant == name for request in requests]] for name in ("short", "long")}
    gaps = np.diff([request.arrival_time for request in requests])
    return {
        "taken": getattr(config.request_generator_config, "num_requests", None) or len(requests),
        "requests": len(requests),
        **{f"{name}_{what}": float(of(values)) for name, values in lengths.items() for what, of in STATISTICS.items()},
        "gap_min_s": float(gaps.min()),
        "gap_max_s": float(gaps.max()),
        **{f"num_{name}": len(values) for name, values in classes.items()},
        **{f"{name}_min": float(values.min()) for name, values in classes.items() if len(values)},
        **{f"{name}_max": float(values.max()) for name, values in classes.items() if len(values)},
    }


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


def _shown(figures: Sequence[Figures], name: str, digits: int = 1) -> str:
    mean = mean_of([one[name] for one in figures])
    return (mean if mean.half else Mean(mean.value)).text(digits)


def _gaps(figures: Figures) -> str:
    """Seconds between arrivals."""
    return " to ".join(dict.fromkeys(f"{figures[f'gap_{bound}_s']:.4g}" for bound in ("min", "max")))


def add_workloads(report: Report, measured: Mapping[str, Sequence[Figures]]) -> None:
    rows = [
        [
            name,
            *(_shown(figures, column, 0) for column in ("taken", "requests")),
            *(_shown(figures, f"prompt_{what}") for what in ("median", "p90", "mean")),
            _shown(figures, "prompt_max", 0),
            *(_shown(figures, f"output_{what}") for what in ("median", "p90", "mean")),
            _shown(figures, "output_max", 0),
            _gaps(figures[0]),
        ]
        for name, figures in measured.items()
    ]
    report.add_table(
        "Workloads",
        ["workload", "taken", "sent", *(f"{name} {what}" for name in LENGTHS for what in LABELS), "gaps s"],
        rows,
        note="taken: turns taken from the dataset; sent: those that are not left out. Lengths are in tokens.",
    )  # fmt: skip


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
        "What the size of the test part tells",
        ["test part of a bucket", "a bucket adds at most", "buckets needed", *splits],
        [
            [
                name,
                most_beyond_a_tenth(rounding),
                int(np.ceil(beyond_a_tenth() / most_beyond_a_tenth(rounding))),
                *(int(rounding(bucket_sizes(split)).sum()) for split in splits.values()),
            ]
            for name, rounding in ROUNDINGS.items()
        ],
        note=f"""The paper's test part has {beyond_a_tenth():.1f} rounds beyond a tenth. Columns of profiles: test
        rounds that each would give. Table 8's MAE over its MAPE, {paper_round_ms():.1f} ms, is a mean of the times of
        the paper's test rounds, weighted by relative errors: it lies between the shortest and the longest of them.""",
    )


def add_claims(report: Report, measured: Mapping[str, Sequence[Figures]], splits: Mapping[str, Split]) -> None:
    """Table 3 row by row, with the two figures of the text, and what the profile's figures tell."""
    table, setup = paper()["table3"], paper()["setup"]["aging"]
    aging, apc = measured[AGING_200][0], measured[APC_1000]
    for what, name in (("median", "prompt_median_200"), ("P90", "prompt_p90_200")):
        ours = f"{aging[f'prompt_{what.lower()}']:.1f}"
        _add(report, f"Aging, 200 requests: {what} of prompt tokens", f"{setup[name]:.1f}", ours)
    for name, interval in ((LPRS_HIGH, "high_concurrency_interval_s"), (LPRS_REGULAR, "regular_interval_s")):
        load, requests = measured[name][0], table["online_requests_per_workload"]
        ours = f"{load['taken']:,.0f} drawn, {load['requests']:,.0f} within the context"
        _add(report, f"{name}: requests", f"{requests:,}", ours, load["taken"] == requests)
        _add(report, f"{name}: interval", f"{table[interval]:.4g} s", f"{_gaps(load)} s")
    for kind in ("short", "long"):
        low, high = table[f"apc_{kind}_prompt_tokens"]
        least, most = min(one[f"{kind}_min"] for one in apc), max(one[f"{kind}_max"] for one in apc)
        theirs, ours = f"{low} to {high} tokens", f"{least:.0f} to {most:.0f} tokens"
        _add(report, f"APC: {kind} prompts", theirs, ours, low <= least and most <= high)
    ratio = f"{apc[0]['num_short'] / apc[0]['num_long']:.3g}:1"
    _add(report, "APC: short to long", table["apc_short_to_long"], ratio)
    for i, (name, split) in enumerate(splits.items()):
        enough = split.counts["kept"] >= table["offline_profiling_samples"]
        ours = f"{split.counts['kept']:,} kept of {split.counts['read']:,}"
        _add(report, f"profile {name}: rounds", f"{table['offline_profiling_samples']:,}", ours, enough)
        if i == 0:
            _add_test_part(report, name, split)
        _add_possible(report, name, split)


def _add(report: Report, claim: str, theirs: str, ours: str, holds: bool | None = None) -> None:
    """A claim that holds where the texts are alike, unless it is said."""
    report.add_claim(claim, theirs, ours, "reproduced" if (ours == theirs if holds is None else holds) else NOT)


def _add_test_part(report: Report, name: str, split: Split) -> None:
    """The number of test rounds as we split, and as the rounding that comes closest does."""
    counts = {rule: int(rounding(bucket_sizes(split)).sum()) for rule, rounding in ROUNDINGS.items()}
    theirs, kept = paper()["table3"]["test_samples"], split.counts["kept"]
    ours, closest = next(iter(counts)), min(counts, key=lambda rule: abs(counts[rule] - theirs))
    for rule in dict.fromkeys((ours, closest)):
        beyond = counts[rule] - kept / 10
        report.add_claim(
            f"profile {name}: test rounds, {rule}",
            f"{theirs:,}, {beyond_a_tenth():+.1f} on a tenth",
            f"{counts[rule]:,}, {beyond:+.1f}",
            verdict(beyond_a_tenth(), Mean(beyond)),
        )


def _add_possible(report: Report, name: str, split: Split) -> None:
    """Whether the paper's test part and errors can come from rounds like these."""
    most = len(bucket_sizes(split)) * max(map(most_beyond_a_tenth, ROUNDINGS.values()))
    report.add_claim(
        f"profile {name}: test rounds beyond a tenth that its buckets allow",
        f"{beyond_a_tenth():.1f}",
        f"at most {most:.1f}",
        "possible" if beyond_a_tenth() <= most else "impossible",
    )
    times = 1e3 * parts(split, "times")
    report.add_claim(
        f"profile {name}: round time that Table 8's MAE over MAPE asks for",
        f"{paper_round_ms():.1f} ms",
        f"{times.min():.1f} to {times.max():.1f} ms",
        "possible" if times.min() <= paper_round_ms() <= times.max() else "impossible",
    )


def add_headline(report: Report, aging: Figures) -> None:
    setup = paper()["setup"]["aging"]
    report.add_headline(
        f"""Prompts of Aging's 200 requests: median {aging["prompt_median"]:.1f} and P90 {aging["prompt_p90"]:.1f}
        tokens (paper {setup["prompt_median_200"]:.1f} and {setup["prompt_p90_200"]:.1f}); {aging["requests"]:,.0f} fit
        into the context."""
    )


def run(options: Options) -> None:
    measured = {name: measure(workload, options) for name, workload in WORKLOADS.items()}
    splits = prepare_profiles(options)
    report = Report("table3", "Table 3: workloads and the predictor's profile", options)
    report.add_list("Assumptions", [*ASSUMPTIONS, *_missing(options)])
    add_workloads(report, measured)
    if splits:
        add_profiles(report, splits)
    add_claims(report, measured, splits)
    setup, ours = paper()["setup"]["aging"], measured[AGING_200][0]
    report.add_headline(
        f"Prompts of the 200-request workload, median and P90 in tokens: paper {setup['prompt_median_200']:.1f} and "
        f"{setup['prompt_p90_200']:.1f}, ours {ours['prompt_median']:.1f} and {ours['prompt_p90']:.1f}."
    )
    rows = [
        {"workload": name, "seed": seed, **one}
        for name, figures in measured.items()
        for seed, one in zip(options.seeds, figures, strict=True)
    ]
    report.write_csv("-workloads.csv", rows)
    add_headline(report, measured[AGING_200][0])
    report.write_csv("-profiles.csv", [{"profile": name, **split.counts} for name, split in splits.items()])
    report.finish()


def _missing(options: Options) -> list[str]:
    """What is to be said of profiles that are not there."""
    return [
        f"No profile {name}: {path.name} is not there; `make table8` collects it."
        for name, path in rounds_files(options).items()
        if not options.quick and not path.is_file()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    run(parse_options(__doc__, argv))


if __name__ == "__main__":
    main()
