"""What LPRS changes in Table 9's readings: latencies against the budgets, mixed rounds about the target, and plots."""

from __future__ import annotations

from benchmarks.harness.cases import Case
from benchmarks.harness.plots import bars, cumulative
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import (
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    Verdict,
    beyond,
    fit_factor,
    mean_of,
    percent,
    verdict,
    worst,
)
from benchmarks.table9_level import COLUMNS, E2E, QUANTITIES, TTFT, is_compared, paper_quantiles, place

NEAR = (5, 10)  # percent of the target that are near it; the claim's are the latter
_P99 = ("ttft_p99_s", "e2e_p99_s")
_NEAR = f"within_{NEAR[-1]}_percent"
_NEAR_LEFT = f"left_within_{NEAR[-1]}_percent"


def paper_changes(load: str) -> dict[str, float]:
    """Of LPRS against the budget, percent, as the paper's figures give them."""
    budget, lprs = paper_quantiles(load, "budget"), paper_quantiles(load, "LPRS")
    return {name: percent(budget[name], lprs[name]) for name in QUANTITIES}


def beside(runs: Runs, case: Case, scheduler: str) -> Case | None:
    """The case that differs from `case` in its scheduler, and in nothing else but its budget."""
    same = {name: value for name, value in case.labels.items() if name not in ("scheduler", "budget")}
    return next(iter(runs.select(**same, scheduler=scheduler)), None)


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
            table.append(
                [*where, f"{before.labels['budget']:,}{tuned}", *(change.text(signed=True) for change in changes)]
            )
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
        for name, what in zip(_P99, ("TTFT", "E2E"), strict=True):
            report.add_claim(
                f"high load: LPRS lowers P99 of {what}",
                f"{theirs[name]:+.2f} %",
                changes[name].text(unit=" %", signed=True),
                verdict(theirs[name], changes[name]),
                place(after),
            )
        return
    for kind, names in (("TTFT", TTFT), ("E2E", E2E)):
        limit = max(abs(theirs[name]) for name in names)
        largest = max(max(abs(changes[name].low), abs(changes[name].high)) for name in names)
        report.add_claim(
            f"regular load: similar {kind}: no quantile's change, with its interval, is above the paper's largest",
            f"at most {limit:.2f} %",
            f"at most {largest:.2f} %",
            worst(verdict(0.0, changes[name], limit) for name in names),
            place(after),
        )


ROUNDS = {
    "mixed rounds %": "mixed_rounds_percent",
    "of the time %": "mixed_time_percent",
    "mean ms": "mixed_mean_ms",
    "sd ms": "mixed_sd_ms",
    "P99 ms": "mixed_p99_ms",
    **{f"within {near} %": f"within_{near}_percent" for near in NEAR},
    "prompt left %": "prompt_left_percent",
    **{f"of these within {near} %": f"left_within_{near}_percent" for near in NEAR},
    "ITL P99 ms": "itl_p99_ms",
}


def add_rounds(report: Report, runs: Runs, target_ms: float) -> None:
    """Mixed rounds of every scheduler, and the claims on how near to the target they are."""
    table = [
        [
            *(place(case), str(case.labels["load"]), name_of(case)),
            *(runs.mean(case, figure).value for figure in ROUNDS.values()),
        ]
        for case in runs.cases
        if not case.labels["kv_blocks"]
    ]
    report.add_table(
        f"Mixed rounds about the target of {target_ms:.4g} ms",
        ["reading", "load", "scheduler", *ROUNDS],
        table,
        note="""Means over seeds. mixed rounds, of the time: of all rounds and of their time. within: share of mixed
        rounds that is so near to the target; prompt left: share that had prompt tokens left to take, and, of these,
        what is near. LPRS 110: about its own target. tokens/s: the CSV file.""",
    )
    _add_reach(report, runs)
    _add_tuned(report, runs)
    for case in runs.cases:
        if (case.labels["load"], case.labels["scheduler"]) == ("high", "LPRS"):
            _claim_near(report, runs, case)


def _claim_near(report: Report, runs: Runs, case: Case) -> None:
    """LPRS itself, as the paper has it, and with APC beside it."""
    found = {"LPRS": case, "with APC": beside(runs, case, "LPRS_APC")}
    near = {name: runs.mean(other, _NEAR_LEFT) for name, other in found.items() if other is not None}
    judged: dict[str, Verdict] = {name: beyond(share, 50) for name, share in near.items()}
    with_apc_only = judged["LPRS"] == NOT_REPRODUCED and judged.get("with APC") == REPRODUCED
    report.add_claim(
        f"high load: most mixed rounds with prompt left are within {NEAR[-1]} % of the target (in part: with APC only)",
        "'most'",
        ", ".join(f"{name} {share.text(1, ' %')}" for name, share in near.items())
        + f"; LPRS, of all mixed rounds {runs.mean(case, _NEAR).text(1, ' %')}",
        PARTLY if with_apc_only else judged["LPRS"],
        place(case),
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
                f"{-100 * theirs / share:.0f} % shorter; a decode-only round takes "
                f"{runs.mean(case, 'decode_round_p50_ms').value:.0f} ms at the median"
            )
    lprs, budget = (list(paper_quantiles("high", scheduler).values()) for scheduler in ("LPRS", "budget"))
    own = fit_factor(lprs, budget)
    parts.append(
        f"the paper's eight figures of LPRS are those of its budget times {own.factor:.3f}, to {own.largest_rest:.1f} %"
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
            share = [runs.values(c, _NEAR_LEFT) for c in (tuned, case)]
            more = mean_of([b - a for a, b in zip(*share, strict=True)])
            changes = {"P99 of ITL": "itl_p99_ms", "mean TTFT": "mean_ttft_s", "tokens/s": "output_tokens_per_s"}
            parts.append(
                f"{place(case)}, {case.labels['load']} load: {case.labels['scheduler']} against {name_of(tuned)}: "
                f"mixed rounds with prompt left within {NEAR[-1]} % of the target {more.text(signed=True)} points, "
                + ", ".join(
                    f"{name} {runs.change(tuned, case, figure).text(unit=' %', signed=True)}"
                    for name, figure in changes.items()
                )
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
        kind: [runs.mean(runs.find(reading=reading, load="high", profile="lean", scheduler=kind), "itl_p99_ms").bar
               for reading in readings]
        for kind in kinds
    }  # fmt: skip
    caption = "Qwen3-8B, high load; bars: means over seeds with 95 % intervals"
    path = bars(report.path("-itl.png"), "Inter-token latency, P99", "ms", {"": heights}, readings, caption)
    report.add_figure(path, "P99 of inter-token latency under high load")


def add_headlines(report: Report, runs: Runs) -> None:
    """LPRS itself: what it changes beside the paper, and how near to the target it is."""
    theirs = paper_changes("high")
    changes, near = [], []
    for reading in ("140 seqs", "history"):
        case = runs.find(reading=reading, load="high", profile="lean", scheduler="LPRS")
        budget = runs.find(reading=reading, load="high", profile="lean", scheduler="budget")
        ours = (runs.change(budget, case, name).value for name in _P99)
        changes.append(" / ".join(f"{value:+.1f}" for value in ours) + f" % in '{reading}'")
        left, of_all = (runs.mean(case, name).value for name in (_NEAR_LEFT, _NEAR))
        near.append(f"{left:.0f} % ({of_all:.0f} %) in '{reading}'")
    paper = " / ".join(f"{theirs[name]:+.1f}" for name in _P99)
    report.add_headline(f"LPRS's change of P99 TTFT / E2E under high load: paper {paper} %; {', '.join(changes)}.")
    report.add_headline(
        f"Of mixed rounds with prompt left (of all), LPRS keeps within {NEAR[-1]} % of its target {', '.join(near)}."
    )
