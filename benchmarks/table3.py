"""`make table3`: statistics of our workloads and of the predictor's profile beside the paper's (Table 3).

The paper gives the Aging workload's median and P90 in its text, the rest in the table. No request is served here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.cases import Workload, sharegpt
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.report import Report
from benchmarks.harness.statistics import Mean, mean_of
from benchmarks.paper import paper
from benchmarks.table3_profile import add_profiles, add_test_part, missing, prepare_profiles
from benchmarks.table4_readings import FULL, NATURAL
from predictor.dataset import BUCKET_TOKENS, Split
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.entry_point import exit_status
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
    "Lengths are in tokens of Qwen3, the paper's model, on every backend.",
    "± is half the 95 % interval over seeds, where a seed draws the workload.",
    f"Profile: cleaned, thinned and split 8:1:1 within each bucket of {BUCKET_TOKENS} scheduled tokens; so the test "
    "part is not exactly a tenth, but depends on what a division leaves. 'scripted' are the authors' profiling runs: "
    "chunk 256, 32 seqs, 2,000 first turns at once and 1,000 every 0.1 s, outputs as long as the real answers, on the "
    "simulated device.",
)

STATISTICS: dict[str, Callable[[np.ndarray], Any]] = {
    "median": np.median,
    "p90": lambda values: np.percentile(values, 90),
    "mean": np.mean,
    "max": np.max,
}
LENGTHS = ("prompt", "output")
LABELS = ("median", "P90", "mean", "max")
NOTICES = {
    "sim": "NOTHING SERVED: lengths and arrivals as they are sent; the profiles' rounds are simulated, no GPU ran.",
    "cpu": "NOTHING SERVED: lengths and arrivals as they are sent; the profile's rounds are this CPU's, real clock.",
    "cuda": "NOTHING SERVED: lengths and arrivals as they are sent; the profile's rounds are the device's, real clock.",
}


def measure(workload: Workload, options: Options) -> list[Figures]:
    """Statistics of the requests, by seed; of all of them on every backend, as none is served."""
    flags = [*workload.flags, *(f"{flag}={seconds:g}" for flag, seconds in workload.intervals.items())]
    if "--request_generator_config_type=SHAREGPT" in flags:  # the others have no texts, and so no tokenizer
        flags.append("--sharegpt_request_generator_config_tokenizer=qwen")
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


def add_settings(report: Report, measured: Mapping[str, Sequence[Figures]], splits: Mapping[str, Split]) -> None:
    """What is the paper's because our own settings say so: nothing to judge, but how much of it is sent."""
    table, apc = paper()["table3"], measured[APC_1000]
    rows = []
    for name, interval in ((LPRS_HIGH, "high_concurrency_interval_s"), (LPRS_REGULAR, "regular_interval_s")):
        load = measured[name][0]
        ours = f"{load['taken']:,.0f} drawn, {load['requests']:,.0f} sent"
        rows.append([f"{name}: requests", f"{table['online_requests_per_workload']:,}", ours])
        rows.append([f"{name}: interval, s", f"{table[interval]:.4g}", _gaps(load)])
    for kind in ("short", "long"):
        low, high = table[f"apc_{kind}_prompt_tokens"]
        least, most = min(one[f"{kind}_min"] for one in apc), max(one[f"{kind}_max"] for one in apc)
        rows.append([f"APC: {kind} prompts, tokens", f"{low} to {high}", f"{least:.0f} to {most:.0f}"])
    ratio = f"{apc[0]['num_short'] / apc[0]['num_long']:.3g}:1"
    rows.append(["APC: short to long", table["apc_short_to_long"], ratio])
    for name, split in list(splits.items())[:1]:
        ours = f"{split.counts['kept']:,} of {split.counts['read']:,} collected"
        rows.append([f"profile {name}: rounds", f"{table['offline_profiling_samples']:,}", ours])
    report.add_table(
        "As set",
        ["setting", "paper", "ours"],
        rows,
        note="""Not judged: settings of ours make these the paper's. Requests that are drawn and not sent have prompts
        that do not fit into the context.""",
    )


def add_claims(report: Report, measured: Mapping[str, Sequence[Figures]], splits: Mapping[str, Split]) -> None:
    """What no setting of ours makes the paper's."""
    setup, aging = paper()["setup"]["aging"], measured[AGING_200][0]
    for what, name in (("median", "prompt_median_200"), ("P90", "prompt_p90_200")):
        theirs, ours = f"{setup[name]:.1f}", f"{aging[f'prompt_{what.lower()}']:.1f}"
        report.add_check(
            f"Aging, 200 requests: {what} of prompt tokens, to the digit printed", theirs, ours, theirs == ours
        )
    for name, split in list(splits.items())[:1]:
        add_test_part(report, name, split)


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
    title = "Table 3: workloads and the predictor's profile"
    report = Report("table3", title, options, notice=NOTICES[options.backend])
    report.add_list("Assumptions", [*ASSUMPTIONS, *missing(options)])
    add_workloads(report, measured)
    add_settings(report, measured, splits)
    if splits:
        add_profiles(report, splits)
    add_claims(report, measured, splits)
    add_headline(report, measured[AGING_200][0])
    rows = [
        {"workload": name, "seed": seed, **one}
        for name, figures in measured.items()
        for seed, one in zip(options.seeds, figures, strict=True)
    ]
    report.write_csv("-workloads.csv", rows)
    report.write_csv("-profiles.csv", [{"profile": name, **split.counts} for name, split in splits.items()])
    report.finish()


def main(argv: Sequence[str] | None = None) -> None:
    run(parse_options(__doc__, argv, logs_runs=False))


if __name__ == "__main__":
    sys.exit(exit_status(main))
