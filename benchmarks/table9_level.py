"""Table 9's level: its quantiles in seconds beside ours in each reading, and its P99 of 22 s at regular load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import fit_factor, fit_offset, level, mean_of
from benchmarks.paper import rows

OUTPUT_TOKENS = 2048
QUANTILES = (50, 80, 90, 99)
TTFT = tuple(f"ttft_p{q}_s" for q in QUANTILES)
E2E = tuple(f"e2e_p{q}_s" for q in QUANTILES)
QUANTITIES = (*TTFT, *E2E)
DELAY = tuple(f"delay_p{q}_s" for q in QUANTILES)
COLUMNS = tuple(f"{kind} P{q}" for kind in ("TTFT", "E2E") for q in QUANTILES)
PAPER_COLUMNS = {"LPRS": "lprs", "budget": "budget"}
SHOWN_FITS = 50.0  # percent; with more left than that neither constant nor factor says anything


def paper_quantiles(load: str, scheduler: str) -> dict[str, float]:
    """The paper's figures by our names."""
    column = PAPER_COLUMNS[scheduler]
    return {
        f"{ours}_{row['quantile'].lower()}_s": row[f"{theirs}_{column}_s"]
        for row in rows("table9")
        if row["load"] == load
        for ours, theirs in (("ttft", "prefill"), ("e2e", "request"))
    }


def seconds(value: float) -> str:
    """Digits that tell 0.09 s from 0.12 s and 397 s from 406 s."""
    return f"{value:.3f}" if value < 1 else f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def is_compared(case: Case) -> bool:
    """Whether the paper has a row of this case's scheduler and settings."""
    return case.labels["scheduler"] in PAPER_COLUMNS and not case.labels["kv_blocks"]


def units(runs: Runs) -> str:
    """Why the paper's 'ms' are read as seconds, by its own rows."""
    paper = paper_quantiles("regular", "budget")
    token = (paper["e2e_p50_s"] - paper["ttft_p50_s"]) / OUTPUT_TOKENS
    case = runs.find(reading="script", load="regular", profile="lean", scheduler="budget")
    return (
        f"The paper's 'ms' are read as seconds. As ms, at regular load under the budget, the P50 of TTFT would be "
        f"{paper['ttft_p50_s']:.3f} ms, and after it, by the P50 of E2E, a request of {OUTPUT_TOKENS:,} tokens would "
        f"decode one in {token:.3f} ms; here ('script') a decode-only round takes "
        f"{runs.mean(case, 'decode_round_p50_ms').value:.0f} ms at the median. The jump of TTFT from P90 to P99 would "
        f"be {paper['ttft_p99_s'] - paper['ttft_p90_s']:.0f} ms, and here the longest round is one of "
        f"{1e3 * runs.mean(case, 'longest_round_s').value:.0f} ms. As seconds, it would decode one in "
        f"{1e3 * token:.0f} ms."
    )


def add_level(report: Report, runs: Runs) -> None:
    """Every quantile of the paper beside ours in each reading, with what a constant and a factor leave; and claims."""
    table = []
    for load in ("high", "regular"):
        for scheduler in PAPER_COLUMNS:
            theirs = paper_quantiles(load, scheduler)
            table.append([load, "paper", "", scheduler, *(seconds(theirs[name]) for name in QUANTITIES), "", ""])
        for case in runs.cases:
            if is_compared(case) and case.labels["load"] == load:
                table.append(_level_row(runs, case))
    report.add_table(
        "Level, seconds",
        ["load", "reading", "engine profile", "scheduler", *COLUMNS, "constant (rest) s", "factor (rest)"],
        table,
        note="""constant and factor: what added to our eight figures, or times them, comes closest to the paper's; rest:
        the largest difference left, blank where the factor leaves more than half.""",
    )
    for case in runs.cases:
        if is_compared(case) and case.labels["scheduler"] == "budget":
            _add_level_claims(report, runs, case)


def _level_row(runs: Runs, case: Case) -> list[str]:
    load, scheduler = str(case.labels["load"]), str(case.labels["scheduler"])
    paper = paper_quantiles(load, scheduler)
    theirs, ours = [paper[name] for name in QUANTITIES], [runs.mean(case, name).value for name in QUANTITIES]
    constant, factor = fit_offset(theirs, ours), fit_factor(theirs, ours)
    fits = ["", ""]
    if factor.largest_rest <= SHOWN_FITS:
        fits = [
            f"{constant.constant:+.0f} ({constant.largest_rest:.0f})",
            f"{factor.factor:.2f} ({factor.largest_rest:.0f} %)",
        ]
    return [load, str(case.labels["reading"]), str(case.labels["profile"]), scheduler, *map(seconds, ours), *fits]


def _add_level_claims(report: Report, runs: Runs, case: Case) -> None:
    """Of the budget's row; P99 of TTFT at regular load, which the paper explains, by itself."""
    load = str(case.labels["load"])
    paper = paper_quantiles(load, "budget")
    groups = {"TTFT and E2E": QUANTITIES}
    if load == "regular":
        groups = {"TTFT to P90 and E2E": (*TTFT[:-1], *E2E), "TTFT's P99": TTFT[-1:]}
    for what, names in groups.items():
        theirs, ours = [paper[name] for name in names], [runs.mean(case, name).value for name in names]
        off = max(100 * abs(b / a - 1) for a, b in zip(theirs, ours, strict=True))
        report.add_claim(
            f"{load} load, budget: {what} within 10 % (in part: all within a factor of 2)",
            _ends(names, paper),
            _ends(names, dict(zip(names, ours, strict=True))) + f", off by at most {off:,.0f} %",
            level(theirs, ours, within=10),
            place(case),
        )
    if load == "regular":
        jump, longest = paper["ttft_p99_s"] - paper["ttft_p90_s"], runs.mean(case, "longest_round_s")
        report.add_check(
            "regular load: a wait for the running round is long enough for the jump of TTFT from P90 to P99",
            f"P99 {seconds(paper['ttft_p99_s'])} s, jump {seconds(jump)} s",
            f"longest round {longest.text(3)} s",
            longest.value >= jump,
            place(case),
        )


def _ends(names: Sequence[str], figures: Mapping[str, float]) -> str:
    """TTFT and E2E, each from its first quantile to its last."""
    kinds = {kind: [figures[name] for name in names if name in of] for kind, of in (("TTFT", TTFT), ("E2E", E2E))}
    spans = {kind: dict.fromkeys(seconds(values[i]) for i in (0, -1)) for kind, values in kinds.items() if values}
    return ", ".join(f"{kind} {' to '.join(span)}" for kind, span in spans.items()) + " s"


def add_delay(report: Report, runs: Runs) -> None:
    """Scheduling delay, arrival to the first chunk, beside TTFT: what prefill latency might mean instead."""
    paper = [
        [load, "paper", scheduler, *(seconds(paper_quantiles(load, scheduler)[name]) for name in TTFT), *[None] * 4]
        for load in ("high", "regular")
        for scheduler in PAPER_COLUMNS
    ]
    ours = [
        [
            *(str(case.labels["load"]), place(case), str(case.labels["scheduler"])),
            *(seconds(runs.mean(case, name).value) for name in (*TTFT, *DELAY)),
        ]
        for case in runs.cases
        if is_compared(case)
    ]
    medians = []
    for load in ("high", "regular"):
        case = runs.find(reading="140 seqs", load=load, profile="lean", scheduler="budget")
        ttft, delay = (seconds(runs.mean(case, name).value) for name in (TTFT[0], DELAY[0]))
        medians.append(
            f"{load} load: paper {seconds(paper_quantiles(load, 'budget')[TTFT[0]])} s, TTFT {ttft} s, delay {delay} s"
        )
    report.add_table(
        "Scheduling delay, the rejected reading of prefill latency, seconds",
        ["load", "reading", "scheduler", *COLUMNS[:4], *(f"delay P{q}" for q in QUANTILES)],
        [*paper, *ours],
        note=f"""From arrival to the first chunk. P50 under the budget in '140 seqs': {"; ".join(medians)}.""",
    )


def place(case: Case) -> str:
    """The reading, and the engine profile where it is not the usual one."""
    reading, profile = str(case.labels["reading"]), case.labels["profile"]
    return reading if profile == "lean" else f"{reading}, {profile}"


def late(times: np.ndarray, arrivals: np.ndarray, start: float) -> np.ndarray:
    """Latencies, had the engine begun `start` seconds after the first arrival with those who came before."""
    return times + np.maximum(0.0, start - (arrivals - arrivals.min()))


def fit_start(ttft: np.ndarray, arrivals: np.ndarray, p99: float) -> float:
    """The start, seconds, at which the P99 of TTFT is `p99`; 0 where it is above that anyway."""
    low, high = 0.0, p99 + float(np.ptp(arrivals))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.percentile(late(ttft, arrivals, middle), 99) < p99 else (low, middle)
    return low


def add_tail(report: Report, runs: Runs) -> None:
    """TTFT at regular load: what it would take for a P99 like the paper's, as it is, and with what is fitted to it."""
    labels = {"load": "regular", "profile": "lean"}
    plain = {name: runs.find(**labels, reading="140 seqs", scheduler=name) for name in PAPER_COLUMNS}
    table = [["paper", name, *_tail_row(paper_quantiles("regular", name)), None, None] for name in PAPER_COLUMNS]

    def add(case: Case, what: str, ours: Mapping[str, float], start: str | None = None) -> None:
        preempted = runs.mean(case, "preempted_percent").value
        table.append([what, str(case.labels["scheduler"]), *_tail_row(ours), preempted, start])

    for case in plain.values():
        add(case, "as it is", _quantiles(runs, case))
    for case in (case for case in runs.cases if case.labels["kv_blocks"]):
        add(case, f"{case.labels['kv_blocks']:,} KV blocks", _quantiles(runs, case))
    for name, case in plain.items():
        ours, start = _started_late(runs, case, paper_quantiles("regular", name)["ttft_p99_s"])
        add(case, "engine starts late", ours, start)
    report.add_table(
        "Regular load: what a P99 of 22 s would take, seconds",
        ["setup", "scheduler", *COLUMNS, "E2E P99 / P80", "preempted %", "start s"],
        table,
        note=f"""'140 seqs' as it is; '256 seqs' with KV blocks that just do not hold the requests at this load; '140
        seqs' had the engine begun `start` seconds after the first arrival, a constant fitted to the paper's P99 and so
        no evidence for it. {_under_high_load(runs)}""",
    )


def _under_high_load(runs: Runs) -> str:
    """The constant that a late start would be there, where the engine never idles, beside the one that fits."""
    parts = []
    for name in PAPER_COLUMNS:
        case = runs.find(reading="140 seqs", load="high", profile="lean", scheduler=name)
        paper, ours = paper_quantiles("high", name), _quantiles(runs, case)
        fit = fit_offset([paper[quantity] for quantity in QUANTITIES], [ours[quantity] for quantity in QUANTITIES])
        parts.append(f"{fit.constant:+.0f} s ({name})")
    return (
        "Under high load a late start would add its seconds to every quantile; what added to '140 seqs' comes closest "
        f"there is {' and '.join(parts)}."
    )


def _quantiles(runs: Runs, case: Case) -> dict[str, float]:
    return {name: runs.mean(case, name).value for name in QUANTITIES}


def _started_late(runs: Runs, case: Case, p99: float) -> tuple[dict[str, float], str]:
    """Quantiles, means over seeds, with the start fitted for each; and the start."""
    by_seed, starts = [], []
    for figures in runs.of(case):
        start = fit_start(figures["ttft"], figures["arrival"], p99)
        starts.append(start)
        by_seed.append(
            {
                f"{name}_p{q}_s": float(np.percentile(late(figures[name], figures["arrival"], start), q))
                for name in ("ttft", "e2e")
                for q in QUANTILES
            }
        )
    means = {name: mean_of([figures[name] for figures in by_seed]).value for name in QUANTITIES}
    return means, mean_of(starts).text(1)


def _tail_row(figures: Mapping[str, float]) -> list[str]:
    return [*(seconds(figures[name]) for name in QUANTITIES), f"{figures['e2e_p99_s'] / figures['e2e_p80_s']:.3f}"]
