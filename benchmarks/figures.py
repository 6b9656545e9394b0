"""`make figure2` ... `make figure6`: the paper's figures beside ours. Figures 2 to 5 draw what `make table4` measured;
Figure 6, the weight of waiting, has runs of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from benchmarks.figure6 import figure6
from benchmarks.harness.options import options_from, options_parser
from benchmarks.harness.plots import bars, cumulative, panels_beside_paper
from benchmarks.harness.report import Cell, Report
from benchmarks.harness.statistics import LEAST, Mean, beyond, change, mean_of, percent, verdict
from benchmarks.paper import paper, policy_change, row
from benchmarks.table4_readings import CHUNKS, POLICIES, shares
from benchmarks.table4_runs import FIRST, Table4Runs
from sarathi.benchmark.entry_point import exit_status

LEGEND_OF = {"FCFS": "FCFS", "AGING": "Aging"}
LATENCIES = ("E2E", "TTFT")
GROUPS = [str(chunk) for chunk in CHUNKS]
CAPTION = "groups: chunk size in tokens; 95 % intervals over seeds; the paper has no bars of whole conversations"
CONSTANT = f"{FIRST} + constants"
ASSUMPTIONS = (
    "All runs are those of Table 4 (see its assumptions): bars are means over its seeds, intervals 95 %.",
    f"'{FIRST}': the paper's workload with 10 seqs; '{CONSTANT}': each run of it plus the one constant that brings its "
    "four latencies closest to the paper's (least squares, Table 4); 'full': whole conversations as prompts, where "
    "prefill is the bottleneck, with 128 seqs; 'KV unbound': with more KV blocks than requests need.",
)


def figure2(report: Report, table4: Table4Runs) -> None:
    _add_policies(report, table4, "mean", ("mean_e2e_s", "mean_ttft_s"))


def figure3(report: Report, table4: Table4Runs) -> None:
    _add_policies(report, table4, "P95", ("p95_e2e_s", "p95_ttft_s"))


def _add_policies(report: Report, table4: Table4Runs, kind: str, columns: tuple[str, str]) -> None:
    """FCFS and Aging by chunk size: two latencies, `kind` of the E2E time and of the TTFT."""
    constants = None
    if table4.has_level:
        constants = {LEGEND_OF[p]: [table4.constant(chunk, p) for chunk in CHUNKS] for p in POLICIES}
    panels = {}
    for name, column in zip(LATENCIES, columns, strict=True):
        theirs = {
            f"paper, {LEGEND_OF[p]}": [row("table4", chunk=c, policy=p)[column] for c in CHUNKS] for p in POLICIES
        }
        ours = {
            reading: {LEGEND_OF[p]: [table4.mean(reading, chunk, p, column) for chunk in CHUNKS] for p in POLICIES}
            for reading in table4.readings
        }
        panels |= panels_beside_paper(name, theirs, ours, constants)
    title = f"E2E time and TTFT under FCFS and Aging: {kind}"
    axes = [f"{kind} {name}, s" for name in LATENCIES]
    report.add_figure(bars(report.path(".png"), title, axes, panels, GROUPS, CAPTION), title)
    _add_policies_table(report, table4, kind, columns)
    if table4.has_level:
        _add_gains(report, table4, kind, columns[0])
    for reading in table4.readings:
        for name, column in zip(LATENCIES, columns, strict=True):
            for chunk in CHUNKS if column != "mean_e2e_s" else ():  # which Table 4 judges
                theirs = policy_change("table4", column, chunk=chunk)
                ours = change(*(table4.values(reading, chunk, policy, column) for policy in POLICIES))
                _add_change(report, f"Aging's change of {kind} {name} at chunk {chunk}", theirs, ours, reading)


def _add_change(report: Report, claim: str, theirs: float, ours: Mean, reading: str) -> None:
    report.add_claim(claim, f"{theirs:+.2f} %", ours.text(unit=" %", signed=True), verdict(theirs, ours), reading)


def _add_policies_table(report: Report, table4: Table4Runs, kind: str, columns: tuple[str, str]) -> None:
    table: list[list[Cell]] = []
    points = []
    for reading in table4.readings:
        for chunk in CHUNKS:
            for policy in POLICIES:
                constant = table4.constant(chunk, policy) if table4.has_level and reading == FIRST else None
                cells: list[Cell] = [reading, str(chunk), LEGEND_OF[policy]]
                point = {"reading": reading, "chunk": chunk, "policy": policy, "constant_s": constant}
                for column in columns:
                    theirs = row("table4", chunk=chunk, policy=policy)[column]
                    ours = table4.mean(reading, chunk, policy, column)
                    cells += [theirs, ours.text(), None if constant is None else ours.value + constant]
                    point |= {f"paper_{column}": theirs, column: ours.value, f"{column}_half_interval": ours.half}
                table.append([*cells, constant, table4.mean(reading, chunk, policy, "itl_p99_ms").value])
                points.append(point)
    report.write_csv(".csv", points)
    report.add_table(
        "Ours and the paper's",
        ["reading", "chunk", "policy", f"paper's {kind} E2E s", "ours", "+ constant", f"paper's {kind} TTFT s", "ours",
         "+ constant", "constant s", "ITL P99 ms"],
        table,
    )  # fmt: skip


def _add_gains(report: Report, table4: Table4Runs, kind: str, column: str) -> None:
    """Of the seconds that Aging gains, those of the order and those of the constants."""
    table: list[list[Cell]] = []
    for chunk in CHUNKS:
        theirs = [row("table4", chunk=chunk, policy=policy)[column] for policy in POLICIES]
        ours = [table4.mean(FIRST, chunk, policy, column).value for policy in POLICIES]
        constants = [table4.constant(chunk, policy) for policy in POLICIES]
        table.append([str(chunk), *(fcfs - aging for fcfs, aging in (theirs, ours, constants))])
    report.add_table(
        f"Seconds by which {kind} E2E falls under Aging, {FIRST}",
        ["chunk", "paper", "ours", "difference of the constants"],
        table,
        note="A constant is one number for a whole run; what it adds to every request of a run is no effect of order.",
    )


def figure4(report: Report, table4: Table4Runs) -> None:
    """Cumulative distributions of the E2E time at chunk 256, and who got faster."""
    times = {reading: {p: table4.e2e(reading, p) for p in POLICIES} for reading in table4.readings}
    panels = {reading: {LEGEND_OF[p]: by_seed[0] for p, by_seed in of.items()} for reading, of in times.items()}
    marks: dict[str, dict[str, tuple[float, float]]] = {}
    if table4.has_level:
        shifted = {LEGEND_OF[p]: panels[FIRST][LEGEND_OF[p]] + table4.constant(256, p) for p in POLICIES}
        panels = {FIRST: panels[FIRST], CONSTANT: shifted, **panels}
        p95 = {
            f"paper's P95, {LEGEND_OF[p]}": (row("table4", chunk=256, policy=p)["p95_e2e_s"], 95.0) for p in POLICIES
        }
        marks = {FIRST: p95, CONSTANT: p95}
    title = "CDF of the E2E time under FCFS and Aging, chunk 256"
    caption = "first seed; the paper prints no points of its curves but their P95"
    report.add_figure(cumulative(report.path(".png"), title, "E2E, s", panels, caption, marks), title)
    report.write_csv(".csv", [
        {"reading": panel, "request": i, "fcfs_e2e_s": f"{before:.6f}", "aging_e2e_s": f"{after:.6f}"}
        for panel, series in panels.items()
        for i, (before, after) in enumerate(zip(*series.values(), strict=True))
    ])  # fmt: skip
    table: list[list[Cell]] = []
    for reading, of in times.items():
        medians = [mean_of([float(np.median(values)) for values in of[p]]) for p in POLICIES]
        pairs = [*zip(*of.values(), strict=True)]
        requests = zip(*(shares(*pair) for pair in pairs), strict=True)
        left, right = (mean_of(side) for side in zip(*(shares(*map(np.sort, pair)) for pair in pairs), strict=True))
        cells = [mean.text() for mean in (*medians, *map(mean_of, requests), left, right)]
        itl = [table4.mean(reading, 256, p, "itl_p99_ms").value for p in POLICIES]
        table.append([reading, *cells, *itl])
        claim = f"Aging's curve lies left of FCFS's, by more than {LEAST:g} %, for most requests"
        report.add_claim(claim, "'most requests'", left.text(1, " %") + " of ranks", beyond(left, 50), reading)
    report.add_table(
        "Who gets faster",
        ["reading", "FCFS median s", "Aging median s", "faster %", "slower %", "ranks left %", "ranks right %",
         "FCFS ITL P99 ms", "Aging ITL P99 ms"],
        table,
        note=f"""faster, slower: share of requests whose own E2E time changes by more than {LEAST:g} %; ranks left,
        right: share of the distribution's ranks (the fastest request of either run, the second, ...) where Aging's
        curve lies that far to the left or right.""",
    )  # fmt: skip


def figure5(report: Report, table4: Table4Runs) -> None:
    """Aging alone, by chunk size."""
    constants = {"ours": [table4.constant(chunk, "AGING") for chunk in CHUNKS]} if table4.has_level else None
    panels, table = {}, []
    for name, column, key in zip(LATENCIES, ("mean_e2e_s", "mean_ttft_s"), ("e2e_s", "ttft_s"), strict=True):
        theirs = [paper()["figure5_mean_by_chunk_aging"][chunk][key] for chunk in GROUPS]
        steps = [percent(*pair) for pair in pairwise(theirs)]
        fcfs = [row("table4", chunk=chunk, policy="FCFS")[column] for chunk in CHUNKS]
        table.append([f"mean {name}", "paper", *theirs, *steps, percent(fcfs[0], fcfs[-1]), None])
        by_reading = {r: [table4.values(r, chunk, "AGING", column) for chunk in CHUNKS] for r in table4.readings}
        ours = {reading: {"ours": [*map(mean_of, by_chunk)]} for reading, by_chunk in by_reading.items()}
        panels |= panels_beside_paper(name, {"paper": theirs}, ours, constants)
        for reading, by_chunk in by_reading.items():
            changes = [change(*pair) for pair in pairwise(by_chunk)]
            fcfs = [table4.mean(reading, chunk, "FCFS", column).value for chunk in CHUNKS]
            cells = [mean.text() for mean in (*ours[reading]["ours"], *changes)]
            itl = table4.mean(reading, CHUNKS[0], "AGING", "itl_p99_ms").value
            table.append([f"mean {name}", reading, *cells, percent(fcfs[0], fcfs[-1]), itl])
            for (small, large), step, mean in zip(pairwise(CHUNKS), steps, changes, strict=True):
                _add_change(report, f"change of Aging's mean {name} from chunk {small} to {large}", step, mean, reading)
    title = "Aging by chunk size"
    axes = [f"mean {name}, s" for name in LATENCIES]
    report.add_figure(bars(report.path(".png"), title, axes, panels, GROUPS, CAPTION), title)
    report.write_csv(".csv", [
        {"panel": panel, "series": series, "chunk": chunk, "seconds": value, "half_interval": half}
        for panel, by_series in panels.items()
        for series, values in by_series.items()
        for chunk, (value, half) in zip(CHUNKS, values, strict=True)
    ])  # fmt: skip
    report.add_table(
        "Aging's means",
        ["latency", "reading", *(f"chunk {chunk}, s" for chunk in CHUNKS), "256 to 512 %", "512 to 1024 %",
         "FCFS, 256 to 1024 %", "ITL P99 ms at 256"],
        table,
        note="FCFS: what the chunk size does to the same latency without Aging, which says how much of it is order.",
    )  # fmt: skip


FROM_TABLE_4: Mapping[str, tuple[str, Callable[[Report, Table4Runs], None]]] = {
    "figure2": ("Figure 2: mean E2E time and TTFT under FCFS and Aging", figure2),
    "figure3": ("Figure 3: P95 of the E2E time and TTFT under FCFS and Aging", figure3),
    "figure4": ("Figure 4: CDF of the E2E time under FCFS and Aging", figure4),
    "figure5": ("Figure 5: Aging by chunk size", figure5),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("figure", choices=(*FROM_TABLE_4, "figure6"))
    args = parser.parse_args(argv)
    options = options_from(args, logs_runs=args.figure == "figure6")
    if args.figure == "figure6":
        figure6(options)
        return
    title, draw = FROM_TABLE_4[args.figure]
    table4 = Table4Runs(options)
    report = Report(args.figure, title, options)
    report.add_list("Assumptions", ASSUMPTIONS)
    draw(report, table4)
    report.finish()


if __name__ == "__main__":
    sys.exit(exit_status(main))
