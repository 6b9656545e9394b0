"""What LPRS changes in Table 9's readings: latencies against the budgets, mixed rounds about the target, and plots."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.harness.cases import Case
from benchmarks.harness.plots import bars, cumulative
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import Mean, fit_factor, mean_of, verdict
from benchmarks.table9_level import COLUMNS, QUANTITIES, is_compared, paper_quantiles, place

LEAST = 0.5  # percent; a smaller change is none


def paper_changes(load: str) -> dict[str, float]:
    """Of LPRS against the budget, percent, as the paper's figures give them."""
    budget, lprs = paper_quantiles(load, "budget"), paper_quantiles(load, "LPRS")
    return {name: 100 * (lprs[name] / budget[name] - 1) for name in QUANTITIES}


def beside(runs: Runs, case: Case, scheduler: str) -> Case | None:
    """The case that differs from `case` in its scheduler, and in nothing else but its budget."""
    same = {name: value for name, value in case.labels.items() if name not in ("scheduler", "budget")}
    found = [c for c in runs.cases if {**same, "scheduler": scheduler}.items() <= dict(c.labels).items()]
    return found[0] if found else None


def _pairs(runs: Runs) -> list[tuple[Case, Case]]:
    """LPRS after the static budget that it is compared with, of 1,024 or tuned."""
    return [
        (before, case)
        for against in ("budget", "tuned budget")
        for case in runs.cases
        if case.labels["scheduler"] == "LPRS" and (before := beside(runs, case, against)) is not None
    ]


def add_changes(report: Report, runs: Runs) -> None:
    """LPRS against each budget by quantile, and the paper's claims on them."""
    table = []
    for load in ("high", "regular"):
        table.append([load, "paper", "", "1,024", *(f"{value:+.2f}" for value in paper_changes(load).values()), None])
        for before, after in _pairs(runs):
            if after.labels["load"] != load:
                continue
            changes = [runs.change(before, after, name) for name in (*QUANTITIES, "itl_p99_ms")]
            tuned = " tuned" if before.labels["scheduler"] == "tuned budget" else ""
            where = [load, str(after.labels["reading"]), str(after.labels["profile"])]
            table.append([*where, f"{before.labels['budget']:,}{tuned}", *(_signed(change) for change in changes)])
    report.add_table(
        "LPRS against static budgets, change in percent",
        ["load", "reading", "engine profile", "against", *COLUMNS, "ITL P99"],
        table,
        note="Negative: LPRS is faster.",
    )
    for before, after in _pairs(runs):
        if before.labels["scheduler"] == "budget":
            _claim_changes(report, runs, before, after)


def _claim_changes(report: Report, runs: Runs, before: Case, after: Case) -> None:
    load = str(after.labels["load"])
    theirs, changes = paper_changes(load), {name: runs.change(before, after, name) for name in QUANTITIES}
    if load == "high":
        for name, what in (("ttft_p99_s", "TTFT"), ("e2e_p99_s", "E2E")):
            report.add_claim(
                f"high load: LPRS lowers P99 of {what}: {place(after)}",
                f"{theirs[name]:+.2f} %",
                _signed(changes[name]) + " %",
                verdict(theirs[name], changes[name], LEAST),
            )
        return
    largest = {kind: [max(map(abs, values)) for values in _by_kind(kind, theirs, changes)] for kind in ("TTFT", "E2E")}
    similar = [kind for kind, (limit, value) in largest.items() if value <= limit]
    report.add_claim(
        f"regular load: both are similar, by the largest change of a quantile: {place(after)}",
        ", ".join(f"{kind} {limit:.2f} %" for kind, (limit, _) in largest.items()),
        ", ".join(f"{kind} {value:.2f} %" for kind, (_, value) in largest.items()),
        "reproduced" if len(similar) == 2 else f"{similar[0]} only" if similar else "not reproduced",
    )
    report.add_claim(
        f"regular load: LPRS is a little slower, by P50 of E2E: {place(after)}",
        f"{theirs['e2e_p50_s']:+.2f} %",
        _signed(changes["e2e_p50_s"]) + " %",
        verdict(theirs["e2e_p50_s"], changes["e2e_p50_s"], LEAST),
    )


def _by_kind(kind: str, theirs: Mapping[str, float], ours: Mapping[str, Mean]) -> tuple[list[float], list[float]]:
    """Changes of TTFT's or E2E's quantiles: the paper's, and ours."""
    names = [name for name in QUANTITIES if name.startswith(kind.lower())]
    return [theirs[name] for name in names], [ours[name].value for name in names]


def _signed(change: Mean) -> str:
    return ("+" if change.value >= 0 else "") + change.text()


ROUNDS = {
    "mixed rounds %": "mixed_rounds_percent",
    "of the time %": "mixed_time_percent",
    "mean ms": "mixed_mean_ms",
    "sd ms": "mixed_sd_ms",
    "P1 ms": "mixed_p1_ms",
    "P99 ms": "mixed_p99_ms",
    "within 5 %": "within_percent",
    "above %": "above_percent",
    "ITL P99 ms": "itl_p99_ms",
    "tokens/s": "output_tokens_per_s",
}


def add_rounds(report: Report, runs: Runs, target_ms: float) -> None:
    """Mixed rounds of every scheduler, and the claims on how near to the target they are."""
    table = [
        [
            *(str(case.labels[name]) for name in ("reading", "load", "profile")),
            name_of(case),
            *(runs.mean(case, figure).value for figure in ROUNDS.values()),
        ]
        for case in runs.cases
        if not case.labels["kv_blocks"]
    ]
    report.add_table(
        f"Mixed rounds about the target of {target_ms:.4g} ms",
        ["reading", "load", "engine profile", "scheduler", *ROUNDS],
        table,
        note="""Means over seeds. mixed rounds, of the time: their share of all rounds and of all rounds' time. within
        5 %, above: share of mixed rounds that is within 5 % of the target, and that exceeds it by more. ITL P99: of the
        times between a request's tokens. LPRS 110: about its own target.""",
    )
    _add_reach(report, runs)
    _add_tuned(report, runs)
    for case in runs.cases:
        if (case.labels["load"], case.labels["scheduler"]) == ("high", "LPRS"):
            _claim_near(report, runs, case)


def _claim_near(report: Report, runs: Runs, case: Case) -> None:
    """LPRS itself, as the paper has it; and with APC."""
    found = {"LPRS": case, "with APC": beside(runs, case, "LPRS_APC")}
    within = {name: runs.mean(other, "within_percent") for name, other in found.items() if other is not None}
    most = [name for name, share in within.items() if share.low > 50]
    report.add_claim(
        f"high load: LPRS keeps most mixed rounds within 5 % of the target: {place(case)}",
        "'most'",
        ", ".join(f"{name} {share.text(1)} %" for name, share in within.items()),
        "reproduced" if "LPRS" in most else "with APC only" if most else "not reproduced",
    )


def _add_reach(report: Report, runs: Runs) -> None:
    """What mixed rounds could change at all under high load, where the last requests end when the backlog is done."""
    theirs = paper_changes("high")["e2e_p99_s"]
    parts = []
    for case in runs.cases:
        if is_compared(case) and (case.labels["load"], case.labels["scheduler"]) == ("high", "budget"):
            share = runs.mean(case, "mixed_time_percent").value
            parts.append(
                f"{place(case)}: mixed rounds take {share:.1f} % of the time and would have to be "
                f"{-100 * theirs / share:.0f} % faster; a decode-only round takes "
                f"{runs.mean(case, 'decode_round_p50_ms').value:.0f} ms at the median"
            )
    lprs, budget = (list(paper_quantiles("high", scheduler).values()) for scheduler in ("LPRS", "budget"))
    own = fit_factor(lprs, budget)
    parts.append(
        f"the paper's eight figures of LPRS are those of its budget times {own.factor:.3f}, to {own.largest_rest:.1f} "
        "%, which a run at another speed would give too"
    )
    report.add_list(
        f"Under high load, for a change of {theirs:+.2f} % of all rounds' time by mixed rounds alone", parts
    )


def _add_tuned(report: Report, runs: Runs) -> None:
    """LPRS, without and with APC, against the static budget whose mean mixed round is as long."""
    parts = []
    for tuned, lprs in _pairs(runs):
        if tuned.labels["scheduler"] != "tuned budget":
            continue
        for case in (lprs, beside(runs, lprs, "LPRS_APC")):
            if case is None:
                continue
            share = [runs.values(c, "within_percent") for c in (tuned, case)]
            more = mean_of([b - a for a, b in zip(*share, strict=True)])
            changes = {"P99 of ITL": "itl_p99_ms", "mean TTFT": "mean_ttft_s", "tokens/s": "output_tokens_per_s"}
            parts.append(
                f"{place(case)}: {case.labels['scheduler']} against {name_of(tuned)}: mixed rounds near the target "
                f"{_signed(more)} points, "
                + ", ".join(f"{name} {_signed(runs.change(tuned, case, figure))} %" for name, figure in changes.items())
            )
    if parts:
        report.add_list("Beyond the paper: against a static budget with as long a mean mixed round", parts)


def name_of(case: Case) -> str:
    """The scheduler, a static one with its budget."""
    scheduler = str(case.labels["scheduler"])
    if not scheduler.endswith("budget"):
        return scheduler
    return f"budget {case.labels['budget']:,}" + (" (tuned)" if scheduler.startswith("tuned") else "")


def add_figures(report: Report, runs: Runs, target_ms: float) -> None:
    """Mixed rounds' times as distributions about the target; P99 of ITL as bars."""
    drawn = [
        case
        for case in runs.cases
        if (case.labels["load"], case.labels["profile"], case.labels["kv_blocks"]) == ("high", "lean", "")
        and case.labels["scheduler"] != "LPRS 110"
    ]
    readings = list(dict.fromkeys(str(case.labels["reading"]) for case in drawn))
    kinds = list(dict.fromkeys(str(case.labels["scheduler"]) for case in drawn))
    times = {
        reading: {str(case.labels["scheduler"]): runs.of(case)[0]["mixed_ms"]
                  for case in drawn if case.labels["reading"] == reading}
        for reading in readings
        if reading != "script" or len(readings) < 3
    }  # fmt: skip
    caption = f"Qwen3-8B, high load, first seed; the mark is the target of {target_ms:.4g} ms"
    path = cumulative(
        report.path("-rounds.png"),
        "Times of mixed rounds",
        "ms",
        times,
        caption,
        {reading: {"target": (target_ms, 0.0)} for reading in times},
        share_of="mixed rounds",
    )
    report.add_figure(path, "Times of mixed rounds under high load")
    heights = {
        kind: [_bar(runs.mean(runs.find(reading=reading, load="high", profile="lean", scheduler=kind), "itl_p99_ms"))
               for reading in readings]
        for kind in kinds
    }  # fmt: skip
    caption = "Qwen3-8B, high load; bars: means over seeds with 95 % intervals"
    path = bars(report.path("-itl.png"), "Inter-token latency, P99", "ms", {"": heights}, readings, caption)
    report.add_figure(path, "P99 of inter-token latency under high load")


def _bar(mean: Mean) -> tuple[float, float | None]:
    return mean.value, mean.half


def add_headlines(report: Report, runs: Runs) -> None:
    """LPRS against the budgets where prefill is the bottleneck."""
    case = runs.find(reading="history", load="high", profile="lean", scheduler="LPRS")
    apc = beside(runs, case, "LPRS_APC")
    parts = []
    for name in ("budget", "tuned budget"):
        before = beside(runs, case, name)
        if before is None or apc is None:
            continue
        parts.append(
            f"against {name_of(before)} ITL P99 {runs.change(before, apc, 'itl_p99_ms').value:+.1f} %, mean TTFT "
            f"{runs.change(before, apc, 'mean_ttft_s').value:+.1f} %, near the target "
            f"{runs.mean(before, 'within_percent').value:.0f} % of mixed rounds"
        )
    if apc is not None:
        report.add_headline(
            f"Where prefill is the bottleneck LPRS_APC keeps {runs.mean(apc, 'within_percent').value:.0f} % of mixed "
            f"rounds within 5 % of its target; {'; '.join(parts)}."
        )
