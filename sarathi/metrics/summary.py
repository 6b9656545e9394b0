"""One run as one JSON object: what summary.json holds. Pure functions of a run's columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from sarathi.metrics.fairness import fairness
from sarathi.metrics.percentiles import describe, describe_counted
from sarathi.metrics.records import REQUEST_METRICS, RunData
from sarathi.metrics.slo import describe_slo

ROUND_METRICS = (
    "batch_execution_time",
    "inter_batch_delay",
    "batch_num_tokens",
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "batch_size",
    "schedule_time",
)


def prediction(data: RunData) -> dict[str, float | None]:
    """How well rounds with a prediction (those with prefills, under a sizer that predicts) were foretold and aimed.

    `mae` in seconds and `mape_percent` (Eq. 15 and 17) of predicted against measured time; `share_within_5_percent`
    of these rounds, from 0 to 1, took within 5 % of the target, where there is one.
    """
    predicted, target = data.rounds["predicted_time"], data.rounds["target_time"]
    measured = data.rounds["batch_execution_time"]
    known = np.isfinite(predicted) & (measured > 0)
    if not known.any():
        return dict.fromkeys(("num_rounds", "mae", "mape_percent", "share_within_5_percent"))
    error = np.abs(predicted[known] - measured[known])
    aimed = known & np.isfinite(target)
    off = np.abs(measured[aimed] / target[aimed] - 1)
    return {
        "num_rounds": int(known.sum()),
        "mae": float(error.mean()),
        "mape_percent": float(100 * (error / measured[known]).mean()),
        "share_within_5_percent": float((off <= 0.05).mean()) if aimed.any() else None,
    }


def summarize(data: RunData) -> dict[str, Any]:
    """Counts, rates and, for each metric, {mean, p50, p80, p90, p95, p99, max} (seconds, or counts).

    Every value that nothing backs is None. `makespan` runs from the first arrival to the end of the last round;
    rates count finished requests only (prompt and output tokens for `total_tokens_per_s`). `schedule_time` is
    host time and the one thing here that differs between two runs of the same seed.
    """
    counts = data.num_by_status
    ends = data.rounds["end_time"]
    makespan = float(ends[-1]) - data.first_arrival_time if len(ends) and data.first_arrival_time is not None else None
    output_tokens = float(data.requests["request_num_decode_tokens"].sum())
    prompt_tokens = float(data.requests["request_num_prefill_tokens"].sum())

    def rate(amount: float) -> float | None:
        return amount / makespan if makespan else None

    return {
        **data.metadata,
        "num_requests": sum(counts.values()),
        **{f"num_{status}": counts.get(status, 0) for status in ("finished", "ignored", "aborted", "unfinished")},
        "first_ignored": data.first_ignored,
        "makespan": makespan,
        "requests_per_s": rate(counts.get("finished", 0)),
        "output_tokens_per_s": rate(output_tokens),
        "total_tokens_per_s": rate(output_tokens + prompt_tokens),
        "num_rounds": len(ends),
        "num_preemptions": data.num_preemptions,
        "num_starved_rounds": data.num_starved_rounds,
        "reasons": data.reasons,
        "prediction": prediction(data),
        **{name: describe(data.requests[name]) for name in REQUEST_METRICS},
        "decode_token_execution_plus_preemption_time": describe_counted(*data.token_gaps),
        **{name: describe(data.rounds[name]) for name in ROUND_METRICS},
        "slo": describe_slo(data.slo, makespan),
        "fairness": fairness(data),
    }
