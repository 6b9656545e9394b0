"""`make figure6`: what the weight of the time waited does in Aging, at the paper's two weight bases and beyond."""

from __future__ import annotations

from benchmarks.harness.cases import Case, fcfs_or_aging, scheduler_flags
from benchmarks.harness.options import Options
from benchmarks.harness.plots import bars, lines, panels_beside_paper
from benchmarks.harness.report import Report
from benchmarks.harness.run import Figures, Runs, latencies, run_cases
from benchmarks.harness.statistics import LEAST, beyond, fit_offset, mean_of, percent, verdict
from benchmarks.paper import paper
from benchmarks.table4_readings import EXACT, FULL, NOT_BINDING
from sarathi.metrics.run_record import RunRecord

CHUNK = 512
BASES = ("100", "500")
PAPER = paper()["figure6_weight_base_chunk512"]
ALPHAS = {base: PAPER["alpha"][base] for base in BASES}
RANGE = (15.0, 30.0, 75.0, 150.0, 500.0, 1500.0)
COLUMNS, NAMES = ("mean_e2e_s", "p95_ttft_s"), ("mean E2E", "P95 TTFT")  # those of the figure
SHOWN = (*COLUMNS, "mean_ttft_s", "p99_ttft_s", "p95_e2e_s", "itl_p99_ms")
ASSUMPTIONS = (
    "alpha, priority a second waited, is 0.3 times the weight base, and beta, priority a remaining prefill token, -1: "
    "weight bases 100 and 500 are alpha 30 and 150. Chunk 512, RTX 4090, profile lean.",
    "'exact': the workload of Table 4, 172 prompts with 512 output tokens each, 10 seqs. 'full': whole conversations "
    "as prompts, where prefill is the bottleneck, 128 seqs; 'KV unbound': with more KV blocks than requests need.",
    "Without the time waited the order is SPF, shortest remaining prefill first; the larger alpha, the nearer it is to "
    "that of arrival (FCFS). Both, and a wider range of alpha, are run where prefill is the bottleneck.",
    "Intervals are 95 %, Student's t over seeds; changes are paired by seed.",
)


def _cases(options: Options) -> list[Case]:
    """The paper's two alphas in both readings; in the second a range of them, and FCFS."""
    simulated = options.backend == "sim"
    full = "full, KV unbound" if simulated else "full"
    system = NOT_BINDING if simulated else ()
    alphas = RANGE if simulated else (*ALPHAS.values(), RANGE[-1])  # each run takes a real device's time
    policies = [("exact", EXACT, 10, (), "AGING", alpha) for alpha in ALPHAS.values()]
    policies += [(full, FULL, 128, system, "AGING", alpha) for alpha in alphas]
    policies += [(full, FULL, 128, system, policy, 0.0) for policy in ("SPF", "FCFS")]
    return [
        Case(
            {"reading": reading, "seqs": seats, "policy": policy, "alpha": alpha},
            workload,
            scheduler_flags(policy, CHUNK, seats) if policy == "SPF" else fcfs_or_aging(policy, CHUNK, seats, alpha),
            system=flags,
        )
        for reading, workload, seats, flags, policy, alpha in policies
    ]


def measure(record: RunRecord) -> Figures:
    """Latencies, and the tail of the TTFT, where those are that a small weight lets wait."""
    return {**latencies(record), "p99_ttft_s": record.summary["prefill_e2e_time"]["p99"]}


def figure6(options: Options) -> None:
    """Run all cases and write the report."""
    runs = run_cases("figure6", _cases(options), options, measure)
    report = Report("figure6", "Figure 6: the weight of the time waited under Aging", options)
    report.add_list("Assumptions", [*ASSUMPTIONS, *runs.notes])
    report.write_csv("-runs.csv", runs.rows())
    readings = list(dict.fromkeys(str(case.labels["reading"]) for case in runs.cases))
    _add_bases(report, runs, readings, level=options.backend == "sim")
    _add_range(report, runs, readings[-1])
    _add_claims(report, runs, readings)
    report.finish()


def _add_bases(report: Report, runs: Runs, readings: list[str], *, level: bool) -> None:
    """The paper's bars beside ours; with `level` also ours plus a constant a run."""
    constants = {"ours": [_constant(runs, base) for base in BASES]} if level else None
    panels = {}
    for column, name in zip(COLUMNS, NAMES, strict=True):
        ours = {
            reading: {"ours": [runs.mean(_aging(runs, reading, alpha), column) for alpha in ALPHAS.values()]}
            for reading in readings
        }
        panels |= panels_beside_paper(name, {"paper": [PAPER[base][column] for base in BASES]}, ours, constants)
    title = f"Aging by weight base, chunk {CHUNK}"
    axes = [f"{name}, s" for name in NAMES]
    caption = "groups: weight base; 95 % intervals over seeds; the paper has no bars of whole conversations"
    report.add_figure(bars(report.path(".png"), title, axes, panels, BASES, caption), title)
    if constants:
        values = zip(constants["ours"], BASES, strict=True)
        report.add_text(
            "Constant that, added to both of our latencies of 'exact', comes closest to the paper's: "
            + ", ".join(f"{value:.2f} s at weight base {base}" for value, base in values)
            + ". It is one number for a whole run, and no effect of order."
        )


def _add_range(report: Report, runs: Runs, reading: str) -> None:
    """What the weight trades, over the range of alpha where prefill is the bottleneck."""
    fcfs = runs.find(reading=reading, policy="FCFS")
    table = []
    for case in runs.cases:
        means = [runs.mean(case, column) for column in SHOWN]
        changes = [None, None]
        if case.labels["reading"] == reading and case is not fcfs:
            changes = [runs.change(fcfs, case, column).text(signed=True) for column in COLUMNS]
        alpha = f"{case.labels['alpha']:g}" if case.labels["policy"] == "AGING" else "–"
        table.append([str(case.labels["reading"]), str(case.labels["policy"]), alpha])
        table[-1] += [*(mean.text() for mean in means), *changes]
    report.add_table(
        "By weight",
        ["reading", "policy", "alpha", "mean E2E s", "P95 TTFT s", "mean TTFT s", "P99 TTFT s", "P95 E2E s",
         "ITL P99 ms", "mean E2E against FCFS %", "P95 TTFT against FCFS %"],
        table,
    )  # fmt: skip
    aging = [case for case in runs.cases if case.labels["reading"] == reading and case.labels["policy"] == "AGING"]
    panels = {}
    for column, name in zip(
        ("mean_e2e_s", "mean_ttft_s", "p95_ttft_s"), ("mean E2E", "mean TTFT", "P95 TTFT"), strict=True
    ):
        points = [(float(case.labels["alpha"]), runs.change(fcfs, case, column)) for case in aging]
        panels[f"{name} against FCFS"] = {"Aging": [(alpha, mean.value, mean.half or 0.0) for alpha, mean in points]}
    caption = f"{reading}, chunk {CHUNK}; 95 % intervals over seeds, paired with FCFS; beta -1"
    title = "What the weight of the time waited trades"
    axes = ("alpha, priority a second", "change, %")
    report.add_figure(lines(report.path("-alpha.png"), title, axes, panels, caption, log_x=True), title)


def _add_claims(report: Report, runs: Runs, readings: list[str]) -> None:
    """The paper's two rises, which are smaller than what is taken for a change, and what it says of the order."""
    bases = f"from weight base {' to '.join(BASES)}"
    theirs = [percent(PAPER[BASES[0]][column], PAPER[BASES[1]][column]) for column in COLUMNS]
    told = {"paper": theirs}
    for reading in readings:
        before, after = (_aging(runs, reading, alpha) for alpha in ALPHAS.values())
        ours = [runs.change(before, after, column) for column in COLUMNS]
        told[reading] = [mean.value for mean in ours]
        for name, their, mean in zip(NAMES, theirs, ours, strict=True):
            report.add_claim(
                f"change of {name} {bases} (below {LEAST:g} %: none)",
                f"{their:+.2f} %",
                mean.text(unit=" %", signed=True),
                verdict(their, mean),
                reading,
            )
    reading = readings[-1]
    from_fcfs = [_distances(runs, reading, alpha) for alpha in ALPHAS.values()]
    nearer = mean_of([small - large for small, large in zip(*from_fcfs, strict=True)])
    report.add_claim(
        "a larger weight is nearer to FCFS: mean E2E's distance from it, at alpha "
        f"{ALPHAS[BASES[0]]:g} less that at {ALPHAS[BASES[1]]:g}, above 0",
        "'closer to pure time-based ordering'",
        f"{' less '.join(f'{mean_of(values).value:.2f}' for values in from_fcfs)}: {nearer.text(signed=True)} points",
        beyond(nearer, 0.0),
        reading,
    )
    changes = "; ".join(f"{who} {' / '.join(f'{value:+.2f}' for value in values)} %" for who, values in told.items())
    report.add_headline(f"{' / '.join(NAMES)} change {bases}: {changes}.")


def _distances(runs: Runs, reading: str, alpha: float) -> list[float]:
    """Percent by which the mean E2E time lies off that of FCFS, by seed."""
    fcfs, aging = runs.find(reading=reading, policy="FCFS"), _aging(runs, reading, alpha)
    return [abs(percent(*pair)) for pair in zip(*(runs.values(c, "mean_e2e_s") for c in (fcfs, aging)), strict=True)]


def _aging(runs: Runs, reading: str, alpha: float) -> Case:
    return runs.find(reading=reading, policy="AGING", alpha=alpha)


def _constant(runs: Runs, base: str) -> float:
    case = _aging(runs, "exact", ALPHAS[base])
    return fit_offset([PAPER[base][c] for c in COLUMNS], [runs.mean(case, c).value for c in COLUMNS]).constant
