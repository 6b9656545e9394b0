"""What the sweep's figures say: who is best by each metric, who is Pareto-optimal, and where AGING's alpha leads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.cases import Case
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import Mean, mean_of


@dataclass(frozen=True)
class Metric:
    """A column of the tables; by `sign` times its value less is better."""

    heading: str
    digits: int = 2
    sign: int = 1


METRICS = {
    "mean_ttft_s": Metric("mean TTFT s"),
    "p99_ttft_s": Metric("P99 TTFT s"),
    "long_ttft_s": Metric("long TTFT s"),
    "tpot_ms": Metric("TPOT ms", 1),
    "itl_p99_ms": Metric("ITL P99 ms", 1),
    "mean_e2e_s": Metric("mean E2E s"),
    "p99_e2e_s": Metric("P99 E2E s"),
    "long_e2e_s": Metric("long E2E s"),
    "output_tokens_per_s": Metric("output tok/s", 0, -1),
    "met_percent": Metric("targets met %", 1, -1),
    "jain": Metric("Jain", 3, -1),
}
# What is weighed against what: latency against fairness, twice, and against jitter.
TRADES = (("mean_e2e_s", "jain"), ("mean_e2e_s", "long_e2e_s"), ("mean_ttft_s", "itl_p99_ms"))


def pareto_optimal(points: Mapping[str, Sequence[float]]) -> list[str]:
    """Names of the points that no other equals or beats in every coordinate and beats in one; less is better. In
    order of the first coordinate."""

    def dominated(point: Sequence[float]) -> bool:
        return any(
            all(a <= b for a, b in zip(other, point, strict=True)) and tuple(other) != tuple(point)
            for other in points.values()
        )

    return sorted((name for name, point in points.items() if not dominated(point)), key=lambda name: points[name][0])


def best(values: Mapping[str, Sequence[float]]) -> tuple[str, list[str]]:
    """The name with the least mean, and those that seeds do not tell from it: the 95 % interval of their differences,
    paired by seed, holds 0."""
    means = {name: mean_of(of_seeds).value for name, of_seeds in values.items()}
    first = min(means, key=means.__getitem__)

    def alike(name: str) -> bool:
        difference = mean_of([b - a for a, b in zip(values[first], values[name], strict=True)])
        return difference.low <= 0

    return first, [name for name in values if name != first and alike(name)]


def cases_at(runs: Runs, workload: str, load: float) -> dict[str, Case]:
    """By scheduler."""
    return {
        str(case.labels["scheduler"]): case
        for case in runs.cases
        if (case.labels["workload"], case.labels["load"]) == (workload, load)
    }


def points_at(runs: Runs, workload: str, load: float, trade: tuple[str, str]) -> dict[str, tuple[float, float]]:
    """Means over seeds of two metrics, to the digits that tables show, by scheduler."""
    x, y = trade
    return {
        name: (round(runs.mean(case, x).value, METRICS[x].digits), round(runs.mean(case, y).value, METRICS[y].digits))
        for name, case in cases_at(runs, workload, load).items()
    }


def optimal_at(runs: Runs, workload: str, load: float, trade: tuple[str, str]) -> list[str]:
    """The Pareto-optimal schedulers."""
    x, y = (METRICS[key].sign for key in trade)
    return pareto_optimal({name: (x * a, y * b) for name, (a, b) in points_at(runs, workload, load, trade).items()})


def add_winners(report: Report, runs: Runs, workloads: Sequence[str], loads: Sequence[float]) -> None:
    """By workload, load and metric the best scheduler, and how many seeds do not tell from it."""
    rows = []
    for workload in workloads:
        for load in loads:
            cases = cases_at(runs, workload, load)
            row = [workload, f"{load:g}"]
            for key, metric in METRICS.items():
                values = {name: [metric.sign * v for v in runs.values(case, key)] for name, case in cases.items()}
                first, alike = best(values)
                row.append("none" if len(alike) == len(cases) - 1 else f"{first} (+{len(alike)})" if alike else first)
            rows.append(row)
    report.add_table(
        "Who is best",
        ["workload", "load", *(metric.heading for metric in METRICS.values())],
        rows,
        note="""(+n): n others are not told from the best, by the 95 % interval of differences paired by seed; none: no
        scheduler is told from the one with the best mean.""",
    )


def add_pareto(report: Report, runs: Runs, workloads: Sequence[str], load: float) -> None:
    """The Pareto-optimal schedulers of each trade in overload; at a moderate load most tie."""
    report.add_table(
        f"Pareto-optimal at {load:g} times capacity",
        ["workload", *(" and ".join(METRICS[key].heading for key in trade) for trade in TRADES)],
        [
            [workload, *(", ".join(optimal_at(runs, workload, load, trade)) for trade in TRADES)]
            for workload in workloads
        ],
        note="""In order of the first metric; means over seeds as the tables show them. Every other scheduler is beaten
        by one of these in one of the two metrics and not better in the other.""",
    )


def add_alpha(report: Report, runs: Runs, workloads: Sequence[str], load: float, order: Sequence[str]) -> None:
    """Whether alpha leads from SPF to FCFS: along `order` mean TTFT should rise and that of long prompts fall."""
    rows = []
    for workload in workloads:
        cases = cases_at(runs, workload, load)
        for key, word in (("mean_ttft_s", "rises"), ("long_ttft_s", "falls")):
            values = [runs.values(cases[name], key) for name in order]
            means = [mean_of(of_seeds).value for of_seeds in values]
            rows.append([workload, METRICS[key].heading, *means, trend(values, 1 if word == "rises" else -1, word)])
    report.add_table(
        f"AGING's alpha, from SPF to FCFS, at {load:g} times capacity",
        ["workload", "metric", *order, "from left to right"],
        rows,
        note="""rises, falls: from end to end beyond the interval of differences paired by seed, and no step goes the
        other way beyond its own.""",
    )


def trend(values: Sequence[Sequence[float]], sign: int, word: str) -> str:
    """`word` if values by seed go in the direction `sign` from first to last and no step goes the other way, as far as
    intervals tell."""

    def difference(before: Sequence[float], after: Sequence[float]) -> Mean:
        return mean_of([sign * (b - a) for a, b in zip(before, after, strict=True)])

    if difference(values[0], values[-1]).low <= 0:
        return "not told"
    contrary = any(difference(before, after).high < 0 for before, after in itertools.pairwise(values))
    return "not everywhere" if contrary else word


def add_rounds(report: Report, runs: Runs, workloads: Sequence[str], load: float, names: Sequence[str]) -> None:
    """What rounds look like where chunk sizes differ: why latencies are as they are."""
    columns = {
        "prefills_per_round": "prefills a mixed round",
        "chunk_tokens": "tokens a prefill",
        "round_p99_ms": "P99 round ms",
        "most_running": "most running",
        "most_waiting": "most waiting",
        "num_preemptions": "preemptions",
        "num_starved_rounds": "starved rounds",
    }
    rows = []
    for workload in workloads:
        for name, case in cases_at(runs, workload, load).items():
            if name in names:
                rows.append([workload, name, *(f"{runs.mean(case, key).value:,.1f}" for key in columns)])
    report.add_table(
        f"Rounds at {load:g} times capacity",
        ["workload", "scheduler", *columns.values()],
        rows,
        note="""Mixed: with prefills. Fewer running than seqs allow while others wait: KV blocks or the budget bind.
        Starved: decodes took the whole budget.""",
    )


def add_headlines(report: Report, runs: Runs, workloads: Sequence[str], load: float) -> None:
    """What an order by age and length changes, and who pays; and what a predicted chunk changes, where that was run."""

    def changes(before: str, after: str, key: str) -> str:
        at = [cases_at(runs, workload, load) for workload in workloads]
        return " / ".join(f"{runs.change(cases[before], cases[after], key).value:+z.0f}" for cases in at) + " %"

    report.add_headline(
        f"""At {load:g} times capacity AGING 150 changes mean E2E by
        {changes("FCFS 512", "AGING 150", "mean_e2e_s")} and long prompts' by
        {changes("FCFS 512", "AGING 150", "long_e2e_s")} against FCFS 512 ({", ".join(workloads)})."""
    )
    if "LPRS_APC" in cases_at(runs, workloads[0], load):
        report.add_headline(
            f"""There LPRS_APC changes ITL P99 by {changes("FCFS 1024", "LPRS_APC", "itl_p99_ms")} and mean E2E by
            {changes("FCFS 1024", "LPRS_APC", "mean_e2e_s")} against FCFS 1024."""
        )
