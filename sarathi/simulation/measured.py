"""Round times from a table of measured rounds: record once on a GPU, simulate anywhere.

Reads the `rounds.csv` of a run. Times are what that run measured, its own CPU overhead included or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sarathi.core.plan import SchedulerOutput
from sarathi.csv_columns import read_rows

FEATURES = (
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "sum_decode_context_len",
    "prefill_processed_tokens",
)
TARGET = "batch_execution_time"
BIN_TOKENS = 32  # rounds are binned by their tokens, so that a staircase survives
MIN_ROUNDS = 10
MAX_TIME = 10**6  # seconds
RIDGE = 4.0  # rounds' worth of pull of a bin's fit towards the fit of all rounds


class MeasuredLatency:
    """Seconds a round takes: a linear fit of all rounds, plus what a fit of the rounds of its token bin adds to it.

    Linear in the FEATURES. Bins with few rounds stay near the fit of all, bins without any use it alone; a
    prediction never leaves half the shortest to twice the longest measured time.
    """

    operator_times = None  # a table knows rounds as a whole

    def __init__(self, features: np.ndarray, times: np.ndarray, pipeline_parallel_size: int) -> None:
        """`features` (rounds, len(FEATURES)), `times` (rounds,) in seconds of one stage."""
        self.num_stages = pipeline_parallel_size
        self._low, self._high = 0.5 * float(times.min()), 2 * float(times.max())
        scale = features.max(axis=0)
        scale[scale == 0] = 1.0
        rows = np.column_stack([np.ones(len(times)), features / scale])
        fit, *_ = np.linalg.lstsq(rows, times, rcond=None)
        residuals = times - rows @ fit
        bins = ((features[:, 0] + features[:, 1]) // BIN_TOKENS).astype(int)
        units = np.append(1.0, scale)
        self._all: list[float] = (fit / units).tolist()
        self._bins: dict[int, list[float]] = {}
        for index in np.unique(bins):
            inside = rows[bins == index]
            gram = inside.T @ inside + RIDGE * np.diag([0.25, 1, 1, 1, 1])
            extra = np.linalg.solve(gram, inside.T @ residuals[bins == index])
            self._bins[int(index)] = ((fit + extra) / units).tolist()

    @classmethod
    def from_rounds_csv(cls, path: str | Path, pipeline_parallel_size: int) -> MeasuredLatency:
        """Read measured rounds; other columns are ignored, rounds without tokens skipped.

        Raises ValueError as `read_rows`, and for a round that took no time and a table of too few rounds.
        """
        features: list[list[float]] = []
        times: list[float] = []
        for line, (*values, time) in read_rows(path, (*FEATURES, TARGET), {TARGET: MAX_TIME}):
            if values[0] + values[1] == 0:
                continue
            if time == 0:
                raise ValueError(f"{path}, line {line}, column {TARGET}: 0 is not allowed; more than 0 seconds")
            features.append(values)
            times.append(time)
        if len(times) < MIN_ROUNDS:
            raise ValueError(f"{path}: {len(times)} measured rounds are too few; at least {MIN_ROUNDS}")
        return cls(np.array(features), np.array(times), pipeline_parallel_size)

    def stage_times(self, output: SchedulerOutput) -> tuple[float, ...]:
        """Seconds of one round, the same for each pipeline stage (a table measures one)."""
        num_decodes = len(output.decodes)
        time = self._time(
            (
                output.num_prefill_tokens,
                num_decodes,
                output.sum_decode_context_len,
                output.prefill_processed_tokens,
            )
        )
        return (time,) * self.num_stages

    def _time(self, features: Sequence[int]) -> float:
        prefill, decode, decode_context, processed = features
        fit = self._bins.get((prefill + decode) // BIN_TOKENS, self._all)
        time = fit[0] + fit[1] * prefill + fit[2] * decode + fit[3] * decode_context + fit[4] * processed
        return min(max(time, self._low), self._high)
