"""Quantiles of a run's latencies, requests that the time limit cut off among them. Knows tables, not where from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sarathi.benchmark.capacity_search.options import Slo
from sarathi.metrics.percentiles import counted_percentile

_METRICS = {
    "scheduling_delay": "request_scheduling_delay",
    "ttft": "prefill_e2e_time",
    "e2e": "request_e2e_time",
}


class Latencies(NamedTuple):
    """`finished`: seconds by quantity, of finished requests; `gaps`: seconds between tokens and how often each came.

    `waits` are seconds that the unfinished ones had spent when the run ended, and `has_token` whether they had got
    their first token by then.
    """

    finished: dict[str, np.ndarray]
    gaps: tuple[np.ndarray, np.ndarray]
    waits: np.ndarray
    has_token: np.ndarray

    @classmethod
    def of(
        cls,
        requests: Mapping[str, np.ndarray],
        token_gaps: tuple[np.ndarray, np.ndarray],
        late: np.ndarray,
        end: float,
    ) -> Latencies:
        """From a RunFolder's `requests` and `token_gaps`, of a run that ended at `end` (seconds).

        `late` are the arrival times of further requests, of which requests.csv does not know.
        """
        finished = requests["status"] == "finished"
        unfinished = (requests["status"] == "unfinished") | (requests["status"] == "aborted")
        arrivals = np.append(requests["arrival_time"][unfinished], late)
        has_token = np.append(requests["request_num_decode_tokens"][unfinished] > 0, np.zeros(len(late), dtype=bool))
        return cls(
            finished={name: requests[metric][finished] for name, metric in _METRICS.items()},
            gaps=(token_gaps[0], token_gaps[1].astype(np.int64)),
            waits=np.maximum(0.0, end - arrivals),
            has_token=has_token,
        )

    def quantile(self, target: Slo) -> float | None:
        """The quantile that `target` asks for; infinite where it lies among the requests that were cut off.

        One that was cut off counts as infinite in what it had still to reach, if it had waited longer than the limit
        (without a limit, in any case). If it had not, it says nothing about that yet, and is left out; it would have
        to wait in the best of systems too. Gaps between tokens are known of finished requests alone: the quantile is
        theirs, and infinite where none has finished.
        """
        if target.quantity == "tbt":
            nothing_finished = not len(self.finished["e2e"])
            return quantile_of(*self.gaps, len(self.waits) if nothing_finished else 0, target.quantile)
        is_open = self.waits > (0.0 if target.limit == math.inf else target.limit)
        if target.quantity != "e2e":
            is_open &= ~self.has_token
        values, counts = np.unique(self.finished[target.quantity], return_counts=True)
        return quantile_of(values, counts, int(is_open.sum()), target.quantile)


def quantile_of(values: np.ndarray, counts: np.ndarray, num_unknown: int, quantile: float) -> float | None:
    """Quantile (0 to 1, linear interpolation) of values[i] taken counts[i] times and `num_unknown` times infinity.

    `values` ascend, counts are positive. None of no samples at all.
    """
    num_known = int(counts.sum())
    if not num_known + num_unknown:
        return None
    if (num_known + num_unknown - 1) * quantile > num_known - 1:
        return math.inf
    if num_unknown:  # beyond the position that is asked for, so any value that is not less will do
        values, counts = np.append(values, values[-1]), np.append(counts, num_unknown)
    return counted_percentile(values, counts, 100 * quantile)
