"""The level of Table 10: its seconds, and what of APC's change is fewer rounds and what is shorter ones."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.cases import Case
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.table10_distance import COLUMNS, PAPER, Judged
from benchmarks.table10_readings import COUNTERS, DYNAMICS, LATENCIES

E2E = LATENCIES[0]


def add_level(report: Report, found: Sequence[Judged], readings: str) -> None:
    """Seconds, once rounds last as long as in the paper; `readings`: the heading of their column."""
    report.add_table(
        "Level: ours (paper's), once rounds last as long as the paper's",
        [readings, "APC", "token gap ms", "mean E2E s", "mean TTFT s", "P90 E2E s", "P90 TTFT s", "largest rest %"],
        [
            [
                one.reading.text(),
                column.removeprefix("apc_"),
                run.itl_ms,
                *(f"{ours:.2f} ({PAPER[m][column]:.2f})" for m, ours in zip(LATENCIES, run.values(), strict=True)),
                max(100 * abs(o / PAPER[m][column] - 1) for m, o in zip(LATENCIES, run.values(), strict=True)),
            ]
            for one in found
            for column, run in zip(COLUMNS, one.retimed, strict=True)
        ],
        note="""From the end of its prefill a request takes one round a token, so the paper's mean E2E less its mean
        prefill E2E tells how long its rounds are: token gap. Our rounds are stretched by one factor a run to last as
        long, and arrivals are kept: that difference is all that is taken from the paper. largest rest: of the four.""",
    )


def add_round_times(report: Report, runs: Runs, closest: Judged, printed: Judged) -> None:
    """What of APC's change is fewer rounds and what is shorter ones, by the paper's own figures."""
    gaps = [run.itl_ms for run in closest.retimed]
    ours = [runs.mean(case, "itl_mean_ms").value for case in closest.cases]
    looks = [_looks(runs, case) for case in closest.cases]
    report.add_text(
        f"""Of APC's {PAPER[E2E]["change_percent"]} % of mean E2E time the closest reading gives
        {runs.change(*closest.cases, E2E).text(unit=" %", signed=True)} by simulated rounds, and
        {closest.retimed_change(E2E).text(unit=" %", signed=True)} once they last as the paper's own figures say:
        {gaps[0]:.1f} ms without and {gaps[1]:.1f} ms with APC, where simulated ones last {ours[0]:.1f} and
        {ours[1]:.1f} ms. LPRS looks at {looks[0]:.2f} prompts a round without APC and at {looks[1]:.2f} with it;
        simulated rounds do not charge for a look. If that is the difference, a look costs the paper's engine
        {(gaps[0] - gaps[1] - ours[0] + ours[1]) / (looks[0] - looks[1]):.2f} ms."""
    )
    report.add_text(
        f"""A control, since these round times are the paper's and so hold a part of its gain: in the reading as
        printed, where APC changes mean E2E time by {runs.change(*printed.cases, E2E).text(unit=" %", signed=True)}
        by simulated rounds, the same stretch makes it {printed.retimed_change(E2E).text(unit=" %", signed=True)}."""
    )


def _looks(runs: Runs, case: Case) -> float:
    """Prompts that a chunk was chosen for, a round: those scheduled and those refused."""
    refused = sum(runs.mean(case, metric).value for metric in COUNTERS)
    return runs.mean(case, DYNAMICS[0]).value + refused / runs.mean(case, "rounds").value
