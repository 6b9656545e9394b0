"""The numbers of summary.json that people compare: what they are called, their unit, and which way is better.

Knows the names in a summary and nothing of tables, pages or runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

E2E, TTFT = "request_e2e_time", "prefill_e2e_time"
TPOT = "decode_time_execution_plus_preemption_normalized"
ITL = "decode_token_execution_plus_preemption_time"
LOWER, NEITHER, HIGHER = -1, 0, 1
VALUE = "value"  # the statistic of a number that stands alone


class Metric(NamedTuple):
    """One number of a summary. `factor` turns it into the unit that ends the label."""

    label: str
    name: str  # in summary.json, a dot for each level
    statistic: str
    better: int
    factor: float = 1.0
    digits: int = 2
    terse: bool = False  # one of the few on a terminal

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """The number in the summary's own unit, as `value`."""
        return value(summary, self.name if self.statistic == VALUE else f"{self.name}.{self.statistic}")

    def show(self, value: float | None) -> str:
        """`value` in the unit of the label; "-" for None."""
        return "-" if value is None else f"{value * self.factor:,.{self.digits}f}"


def value(summary: Mapping[str, Any], name: str) -> float | None:
    """The number `name` ('slo.share_met'); None where nothing backs it, or an older summary lacks it."""
    found: Any = summary
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return None if found is None else float(found)


def replicas_of(summary: Mapping[str, Any]) -> str:
    """'3 replicas' of a run, 'replica 1 of 3' of one of them, '' where there are none."""
    if summary.get("num_replicas") is None:
        return ""
    if summary.get("replica_id") is None:
        return f"{summary['num_replicas']} replicas"
    return f"replica {summary['replica_id']} of {summary['num_replicas']}"


def _timed(label: str, name: str, unit: str, statistics: str, terse: str, better: int = LOWER) -> list[Metric]:
    factor = 1e3 if unit == "ms" else 1.0
    return [
        Metric(f"{label} {statistic} {unit}", name, statistic, better, factor, terse=statistic in terse.split())
        for statistic in statistics.split()
    ]


# In the order in which users ask.
METRICS: tuple[Metric, ...] = (
    *_timed("E2E", E2E, "s", "mean p50 p95 p99", terse="mean p95"),
    *_timed("TTFT", TTFT, "s", "mean p50 p90 p95 p99", terse="mean p50 p99"),
    *_timed("TPOT", TPOT, "ms", "mean p99", terse="mean"),
    *_timed("ITL", ITL, "ms", "mean p50 p95 p99 max", terse="p99"),
    *_timed("waiting", "request_waiting_time", "s", "mean", terse="mean"),
    *_timed("execution", "request_execution_time", "s", "mean", terse="mean"),
    *_timed("round", "batch_execution_time", "ms", "mean p99", terse="", better=NEITHER),
    Metric("requests/s", "requests_per_s", VALUE, HIGHER),
    Metric("tok/s", "output_tokens_per_s", VALUE, HIGHER, digits=0, terse=True),
    Metric("makespan s", "makespan", VALUE, LOWER),
    Metric("goodput req/s", "slo.goodput_requests_per_s", VALUE, HIGHER, terse=True),
    Metric("SLO met %", "slo.share_met", VALUE, HIGHER, 100, 1, terse=True),
    Metric("SLO TTFT met %", "slo.share_ttft_met", VALUE, HIGHER, 100, 1),
    Metric("SLO TPOT met %", "slo.share_tpot_met", VALUE, HIGHER, 100, 1),
    Metric("slowdown max", "fairness.max_slowdown", VALUE, LOWER, digits=1, terse=True),
    Metric("slowdown Jain", "fairness.jain_index_slowdown", VALUE, HIGHER, digits=3, terse=True),
    Metric("longest wait s", "fairness.longest_wait", VALUE, LOWER),
    Metric("preempt.", "num_preemptions", VALUE, LOWER, digits=0, terse=True),
    Metric("prediction MAPE %", "prediction.mape_percent", VALUE, LOWER),
    Metric("within 5% of target %", "prediction.share_within_5_percent", VALUE, HIGHER, 100, 1),
    Metric("finished", "num_finished", VALUE, NEITHER, digits=0, terse=True),
    Metric("ignored", "num_ignored", VALUE, NEITHER, digits=0, terse=True),
    Metric("unfinished", "num_unfinished", VALUE, NEITHER, digits=0),
)

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


class Distribution(NamedTuple):
    """What of a summary is told by its STATISTICS. `factor` turns it into the unit that ends the label."""

    label: str
    name: str
    factor: float = 1.0
    terse: bool = True  # on a terminal too

    def of(self, summary: Mapping[str, Any], statistic: str) -> float | None:
        """In the unit of the label."""
        found = value(summary, f"{self.name}.{statistic}")
        return None if found is None else found * self.factor


DISTRIBUTIONS: tuple[Distribution, ...] = (
    Distribution("end-to-end time, s", E2E),
    Distribution("time to first token, s", TTFT),
    Distribution("time per output token, ms", TPOT, 1e3),
    Distribution("inter-token latency, ms", ITL, 1e3),
    Distribution("scheduling delay, s", "request_scheduling_delay", terse=False),
    Distribution("waiting, s", "request_waiting_time"),
    Distribution("execution, s", "request_execution_time"),
    Distribution("slowdown", "slowdown", terse=False),
    Distribution("round of one stage, ms", "batch_execution_time", 1e3),
    Distribution("tokens in a round", "batch_num_tokens", terse=False),
    Distribution("prompt tokens of a request", "request_num_prefill_tokens", terse=False),
    Distribution("output tokens of a request", "request_num_decode_tokens", terse=False),
)


def terse_metrics(summaries: list[Mapping[str, Any]]) -> list[Metric]:
    """Those for a terminal; of targets only where some run had them."""
    return [
        metric
        for metric in METRICS
        if metric.terse and (not metric.name.startswith("slo.") or any(metric.of(s) is not None for s in summaries))
    ]
