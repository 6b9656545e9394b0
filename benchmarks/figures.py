"""`make figure2` ... `make figure6`: the paper's figures beside ours. Figures 2 to 5 draw what `make table4` measured;
Figure 6, the weight of waiting, has runs of its own."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure6 import figure6
from benchmarks.harness.options import Options, options_from, options_parser
from benchmarks.harness.plots import bars, cumulative
from benchmarks.harness.report import Report
from benchmarks.harness.statistics import REPRODUCED, Mean, Offset, change, fit_offset, mean_of, verdict
from benchmarks.paper import paper, rows
from benchmarks.table4 import ALPHA, CHUNKS, COLUMNS, POLICIES

NEARLY = 1.0  # percent: "nearly identical" is a change below this; it also parts faster requests from equal ones
NOT_REPRODUCED = "not reproduced"
LEGEND_OF = {"FCFS": "FCFS", "AGING": "Aging"}
CONSTANT = "exact + constants"
READINGS = {
    "exact": {"reading": "exact", "seqs": "10", "profile": "lean", "alpha": str(ALPHA)},
    "full, KV unbound": {"reading": "full, KV unbound", "profile": "lean", "alpha": str(ALPHA)},
    "full": {"reading": "full", "profile": "lean", "alpha": str(ALPHA)},
}
ASSUMPTIONS = (
    "All runs are those of Table 4 (see its assumptions): bars are means over its seeds, intervals 95 %.",
    "'exact': the paper's workload with 10 seqs; 'exact + constants': each run of it plus the one constant that brings "
    "its four latencies closest to the paper's (least squares, Table 4); 'full': whole conversations as prompts, where "
    "prefill is the bottleneck, with 128 seqs; 'KV unbound': with more KV blocks than requests need.",
)
PAPER = {(row["chunk"], row["policy"]): row for row in rows("table4")}
Rows = Sequence[Mapping[str, str]]


class Table4:
    """What `make table4` measured, by reading, chunk size and policy."""

    def __init__(self, options: Options) -> None:
        self._path = options.directory / "table4-runs.csv"
        self._make = f"make table4{'' if options.backend == 'sim' else f' BACKEND={options.backend}'}"
        if options.quick:
            self._make = f"python -m benchmarks.table4 --quick --backend {options.backend}"
        self._runs = self._read(self._path)
        self._requests = self._read(options.directory / "table4-e2e.csv")
        self.readings = [name for name in ("exact", "full, KV unbound") if options.backend == "sim" or name == "exact"]
        self.readings += ["full"] if options.backend != "sim" else []
        self.constant_of = self._offset if options.backend == "sim" else None  # elsewhere the level is not compared

    def values(self, reading: str, chunk: int, policy: str, column: str) -> list[float]:
        """By seed."""
        return [float(row[column]) for row in self._select(self._runs, reading, chunk, policy)]

    def mean(self, reading: str, chunk: int, policy: str, column: str) -> Mean:
        return mean_of(self.values(reading, chunk, policy, column))

    def e2e(self, reading: str, policy: str) -> np.ndarray:
        """Seconds of each request in order of arrival: first seed, chunk 256."""
        return np.array([float(row["e2e_s"]) for row in self._select(self._requests, reading, 256, policy)])

    def _offset(self, chunk: int, policy: str) -> Offset:
        ours = [self.mean("exact", chunk, policy, column).value for column in COLUMNS]
        return fit_offset([PAPER[chunk, policy][column] for column in COLUMNS], ours)

    def _select(self, table: Rows, reading: str, chunk: int, policy: str) -> Rows:
        wanted = {**READINGS[reading], "chunk": str(chunk), "policy": policy}
        found = [row for row in table if wanted.items() <= row.items()]
        if not found:
            raise SystemExit(f"{self._path} has no rows with {wanted}: run {self._make} again")
        return found

    def _read(self, path: Path) -> Rows:
        if not path.is_file():
            raise SystemExit(f"{path} is missing: run {self._make} first")
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def figures_2_and_3(report: Report, table4: Table4, columns: tuple[str, str], kind: str) -> None:
    """FCFS and Aging by chunk size: two latencies, `kind` of the E2E time and of the TTFT."""
    panels: dict[str, dict[str, list[tuple[float, float | None]]]] = {}
    for column, name in zip(columns, ("E2E", "TTFT"), strict=True):
        theirs: dict[str, list[tuple[float, float | None]]] = {
            f"paper, {LEGEND_OF[policy]}": [(PAPER[chunk, policy][column], None) for chunk in CHUNKS]
            for policy in POLICIES
        }
        beside = theirs if table4.constant_of else {}
        if not beside:  # the levels are not to be compared
            panels[f"{name}, paper"] = theirs
        for reading in table4.readings:
            ours = {policy: [table4.mean(reading, chunk, policy, column) for chunk in CHUNKS] for policy in POLICIES}
            panels[f"{name}, {reading}"] = (beside if reading == "exact" else {}) | {
                LEGEND_OF[policy]: [(mean.value, mean.half) for mean in means] for policy, means in ours.items()
            }
            if reading == "exact" and table4.constant_of:
                panels[f"{name}, {CONSTANT}"] = theirs | {
                    LEGEND_OF[policy]: [
                        (mean.value + table4.constant_of(chunk, policy).constant, mean.half)
                        for chunk, mean in zip(CHUNKS, means, strict=True)
                    ]
                    for policy, means in ours.items()
                }
    caption = "groups: chunk size in tokens; 95 % intervals over seeds; the paper has no bars of whole conversations"
    title = f"E2E time and TTFT under FCFS and Aging: {kind}"
    axes = [f"{kind} {name}, s" for name in ("E2E", "TTFT")]
    report.add_figure(bars(report.path(".png"), title, axes, panels, [str(c) for c in CHUNKS], caption), title)
    _add_policies_table(report, table4, columns, kind)
    for reading in table4.readings:
        for column, name in zip(columns, ("E2E", "TTFT"), strict=True):
            for chunk in CHUNKS if column != "mean_e2e_s" else ():  # which Table 4 judges
                ours = change(*(table4.values(reading, chunk, policy, column) for policy in POLICIES))
                before, after = (PAPER[chunk, policy][column] for policy in POLICIES)
                claim = f"{reading}: Aging's change of {kind} {name} at chunk {chunk}"
                _add_change(report, claim, 100 * (after / before - 1), ours)


def _add_policies_table(report: Report, table4: Table4, columns: tuple[str, str], kind: str) -> None:
    table, points = [], []
    for reading in table4.readings:
        for chunk in CHUNKS:
            for policy in POLICIES:
                means = [table4.mean(reading, chunk, policy, column) for column in columns]
                theirs = [PAPER[chunk, policy][column] for column in columns]
                constant = None
                if reading == "exact" and table4.constant_of:
                    constant = table4.constant_of(chunk, policy).constant
                itl = table4.mean(reading, chunk, policy, "itl_p99_ms")
                shifted = [None if constant is None else mean.value + constant for mean in means]
                table.append([reading, str(chunk), LEGEND_OF[policy], *_interleave(theirs, means, shifted)])
                table[-1] += [constant, itl.value]
                points.append({"reading": reading, "chunk": chunk, "policy": policy, "constant_s": constant})
                for column, their, mean in zip(columns, theirs, means, strict=True):
                    points[-1] |= {f"paper_{column}": their, column: mean.value, f"{column}_half_interval": mean.half}
    report.write_csv(".csv", points)
    report.add_table(
        "Ours and the paper's",
        ["reading", "chunk", "policy", f"paper's {kind} E2E s", "ours", "+ constant", f"paper's {kind} TTFT s", "ours",
         "+ constant", "constant s", "ITL P99 ms"],
        table,
    )  # fmt: skip
    if table4.constant_of is None:
        return
    gains = []
    for chunk in CHUNKS:
        fcfs, aging = (table4.constant_of(chunk, policy).constant for policy in POLICIES)
        ours = [table4.mean("exact", chunk, policy, columns[0]).value for policy in POLICIES]
        theirs = [PAPER[chunk, policy][columns[0]] for policy in POLICIES]
        gains.append([str(chunk), theirs[0] - theirs[1], ours[0] - ours[1], fcfs - aging])
    report.add_table(
        f"Seconds by which {kind} E2E falls under Aging, exact",
        ["chunk", "paper", "ours", "difference of the constants"],
        gains,
        note="A constant is one number for a whole run; what it adds to every request of a run is no effect of order.",
    )


def _interleave(theirs: Sequence[float], ours: Sequence[Mean], shifted: Sequence[float | None]) -> list[Any]:
    triples = zip(theirs, (mean.text() for mean in ours), shifted, strict=True)
    return [cell for triple in triples for cell in triple]


def _add_change(report: Report, claim: str, theirs: float, ours: Mean) -> None:
    """A claim about a change, percent; below NEARLY the paper calls it 'nearly identical', and so it is judged."""
    judged = verdict(theirs, ours)
    if abs(theirs) < NEARLY:
        outside = ours.low > NEARLY or ours.high < -NEARLY
        judged = REPRODUCED if max(-ours.low, ours.high) < NEARLY else NOT_REPRODUCED if outside else "undecided"
    report.add_claim(claim, f"{theirs:.2f} %", ours.text(unit=" %"), judged)


def figure2(report: Report, table4: Table4) -> None:
    figures_2_and_3(report, table4, ("mean_e2e_s", "mean_ttft_s"), "mean")


def figure3(report: Report, table4: Table4) -> None:
    figures_2_and_3(report, table4, ("p95_e2e_s", "p95_ttft_s"), "P95")


def figure4(report: Report, table4: Table4) -> None:
    """Cumulative distributions of the E2E time at chunk 256, and who got faster."""
    panels = {reading: {p: table4.e2e(reading, p) for p in POLICIES} for reading in table4.readings}
    marks = {}
    if table4.constant_of:
        shifted = {p: panels["exact"][p] + table4.constant_of(256, p).constant for p in POLICIES}
        panels = {"exact": panels["exact"], CONSTANT: shifted, **panels}
        p95 = {f"paper's P95, {LEGEND_OF[p]}": (PAPER[256, p]["p95_e2e_s"], 95.0) for p in POLICIES}
        marks = {"exact": p95, CONSTANT: p95}
    title = "CDF of the E2E time under FCFS and Aging, chunk 256"
    named = {panel: {LEGEND_OF[p]: values for p, values in series.items()} for panel, series in panels.items()}
    caption = "first seed; the paper prints no points of its curves but their P95"
    report.add_figure(cumulative(report.path(".png"), title, "E2E, s", named, caption, marks), title)
    report.write_csv(".csv", [
        {"reading": panel, "request": i, "fcfs_e2e_s": f"{before:.6f}", "aging_e2e_s": f"{after:.6f}"}
        for panel, series in panels.items()
        for i, (before, after) in enumerate(zip(series["FCFS"], series["AGING"], strict=True))
    ])  # fmt: skip
    table = []
    for panel, series in panels.items():
        fcfs, aging = series["FCFS"], series["AGING"]
        faster, slower = shares(fcfs, aging)
        left, right = shares(np.sort(fcfs), np.sort(aging))
        itl = [table4.mean("exact" if panel == CONSTANT else panel, 256, p, "itl_p99_ms").value for p in POLICIES]
        table.append([panel, float(np.median(fcfs)), float(np.median(aging)), faster, slower, left, right, *itl])
        if panel == CONSTANT:  # fitted to the paper's latencies, so no finding of ours
            continue
        report.add_claim(
            f"{panel}: Aging's curve lies left of FCFS's for most requests",
            "'most requests'",
            f"{left:.1f} % of ranks",
            REPRODUCED if left > 50 else NOT_REPRODUCED,
        )
    report.add_table(
        "Who gets faster",
        ["reading", "FCFS median s", "Aging median s", "faster %", "slower %", "ranks left %", "ranks right %",
         "FCFS ITL P99 ms", "Aging ITL P99 ms"],
        table,
        note=f"""faster, slower: share of requests whose own E2E time changes by more than {NEARLY:.0f} %; ranks left,
        right: share of the distribution's ranks (the fastest request of either run, the second, ...) where Aging's
        curve lies that far to the left or right. Table 4 has these shares over all seeds.""",
    )  # fmt: skip


def shares(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Percent of pairs that fall, and that rise, by more than NEARLY percent."""
    ratio = 100 * (after / before - 1)
    return 100 * float(np.mean(ratio < -NEARLY)), 100 * float(np.mean(ratio > NEARLY))


def figure5(report: Report, table4: Table4) -> None:
    """Aging alone, by chunk size."""
    theirs = paper()["figure5_mean_by_chunk_aging"]
    first, last = (PAPER[chunk, "FCFS"] for chunk in (CHUNKS[0], CHUNKS[-1]))
    named = {"E2E": ("mean_e2e_s", "e2e_s"), "TTFT": ("mean_ttft_s", "ttft_s")}
    panels: dict[str, dict[str, list[tuple[float, float | None]]]] = {}
    table = []
    for name, (column, key) in named.items():
        printed = [theirs[str(chunk)][key] for chunk in CHUNKS]
        paper_fcfs = 100 * (last[column] / first[column] - 1)
        table.append(
            [f"mean {name}", "paper", *(f"{value:.2f}" for value in printed), *_steps(printed), paper_fcfs, None]
        )
        for reading in table4.readings:
            by_seed = [table4.values(reading, chunk, "AGING", column) for chunk in CHUNKS]
            means = [mean_of(values) for values in by_seed]
            beside = f"{name}, {reading}" if reading == "exact" and table4.constant_of else f"{name}, paper"
            if reading == "exact":
                panels[beside] = {"paper": [(value, None) for value in printed]}
            panel = panels.setdefault(f"{name}, {reading}", {})
            panel["ours"] = [(mean.value, mean.half) for mean in means]
            if reading == "exact" and table4.constant_of:
                constants = [table4.constant_of(chunk, "AGING").constant for chunk in CHUNKS]
                pairs = zip(means, constants, strict=True)
                panel["ours + constants"] = [(mean.value + constant, mean.half) for mean, constant in pairs]
            steps = [change(by_seed[i], by_seed[i + 1]) for i in (0, 1)]
            fcfs = [table4.mean(reading, chunk, "FCFS", column).value for chunk in CHUNKS]
            itl = table4.mean(reading, CHUNKS[0], "AGING", "itl_p99_ms").value
            cells = [mean.text() for mean in means] + [step.text() for step in steps]
            table.append([f"mean {name}", reading, *cells, 100 * (fcfs[-1] / fcfs[0] - 1), itl])
            for i, step in enumerate(steps):
                claim = f"{reading}: Aging's mean {name} rises from chunk {CHUNKS[i]} to {CHUNKS[i + 1]}"
                theirs_step = 100 * (printed[i + 1] / printed[i] - 1)
                report.add_claim(claim, f"{theirs_step:.2f} %", step.text(unit=" %"), verdict(theirs_step, step))
    points = [
        {"panel": panel, "series": name, "chunk": chunk, "seconds": value, "half_interval": half}
        for panel, series in panels.items()
        for name, values in series.items()
        for chunk, (value, half) in zip(CHUNKS, values, strict=True)
    ]
    title = "Aging by chunk size"
    caption = "groups: chunk size in tokens; 95 % intervals over seeds; the paper has no bars of whole conversations"
    axes = [f"mean {name}, s" for name in named]
    report.add_figure(bars(report.path(".png"), title, axes, panels, [str(c) for c in CHUNKS], caption), title)
    report.write_csv(".csv", points)
    report.add_table(
        "Aging's means",
        ["latency", "reading", *(f"chunk {chunk}, s" for chunk in CHUNKS), "256 to 512 %", "512 to 1024 %",
         "FCFS, 256 to 1024 %", "ITL P99 ms at 256"],
        table,
        note="FCFS: what the chunk size does to the same latency without Aging, which says how much of it is order.",
    )  # fmt: skip


def _steps(values: Sequence[float]) -> list[str]:
    return [f"{100 * (values[i + 1] / values[i] - 1):.2f}" for i in range(len(values) - 1)]


FROM_TABLE_4: Mapping[str, tuple[str, Callable[[Report, Table4], None]]] = {
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
    table4 = Table4(options)
    report = Report(args.figure, title, options)
    report.add_list("Assumptions", ASSUMPTIONS)
    draw(report, table4)
    report.finish()


if __name__ == "__main__":
    main()
