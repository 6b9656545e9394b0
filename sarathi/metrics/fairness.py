"""How evenly a run treated its requests. Pure functions of a run's columns.

Slowdown is a request's end-to-end time divided by the time of the rounds it took part in. Both are measured in
the same run, so it needs no oracle: a time 'alone on the machine' would need a second run for each request, and
E2E per token rewards long outputs. It is 1 for a request that never waited, whatever its length. Rounds shared
with others count as service, so it measures waiting, not interference within a round. Under pipeline
parallelism one stage's time counts, and the other stages' appear as waiting, alike for all requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sarathi.metrics.records import RunData

PROMPT_LENGTH_BUCKETS = (32, 128, 512, 2048, 8192)  # inclusive upper edges, tokens


def jain_index(values: np.ndarray) -> float | None:
    """(sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything; None without values.

    Jain, Chiu and Hawe, 'A quantitative measure of fairness and discrimination', DEC-TR-301, 1984.
    """
    total = float(np.square(values).sum())
    return float(values.sum()) ** 2 / (len(values) * total) if total > 0 else None


def _mean_and_max(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "max": None}
    return {"mean": float(values.mean()), "max": float(values.max())}


def slowdown_by_prompt_length(prompt_lengths: np.ndarray, slowdown: np.ndarray) -> dict[str, dict[str, Any]]:
    """Number of requests, mean and worst slowdown for each prompt-length bucket ('<=32', ..., '>8192')."""
    bucket = np.searchsorted(PROMPT_LENGTH_BUCKETS, prompt_lengths, side="left")
    names = [f"<={edge}" for edge in PROMPT_LENGTH_BUCKETS] + [f">{PROMPT_LENGTH_BUCKETS[-1]}"]
    chosen = {name: slowdown[bucket == i] for i, name in enumerate(names)}
    return {name: {"num_requests": len(values), **_mean_and_max(values)} for name, values in chosen.items()}


def _largest(values: np.ndarray, unfinished: float | None) -> float | None:
    found = [float(values.max())] if len(values) else []
    return max(found + ([] if unfinished is None else [unfinished]), default=None)


def fairness(data: RunData) -> dict[str, Any]:
    """The `fairness` object of summary.json. Waits (seconds) include those of requests that did not finish."""
    slowdown = data.requests["slowdown"]
    valid = np.isfinite(slowdown)
    slowdown, prompts = slowdown[valid], data.requests["request_num_prefill_tokens"][valid]
    overall = _mean_and_max(slowdown)
    return {
        "jain_index_slowdown": jain_index(slowdown),
        "mean_slowdown": overall["mean"],
        "max_slowdown": overall["max"],
        "slowdown_by_prompt_length": slowdown_by_prompt_length(prompts, slowdown),
        "longest_wait": _largest(data.requests["request_waiting_time"], data.unfinished_waiting_time),
        "longest_scheduling_delay": _largest(
            data.requests["request_scheduling_delay"], data.unfinished_scheduling_delay
        ),
    }
