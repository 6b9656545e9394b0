"""How much: the number of prompt tokens a prefill gets in this round."""

from __future__ import annotations

import functools
import math
from typing import Final, NamedTuple, Protocol

import numpy as np

from sarathi.core.plan import BatchPlan, MemoryStats, SchedulerOutput
from sarathi.request import Request

DRIFT_FALLBACK: Final = "drift_fallback"  # the predictor has been wrong lately: the static budget decides


class ChunkDecision(NamedTuple):
    num_tokens: int  # 0: nothing for this request in this round
    predicted_time: float | None = None  # seconds of the round with this chunk, where the sizer predicts
    num_candidates: int = 1
    reason: str | None = None  # a label, counted for the round's record


class ChunkSizer(Protocol):
    """Chooses a chunk, given what the plan holds so far. Pure: no clock, no log, no I/O."""

    target_time: float | None = None  # seconds a round should take, where the sizer aims at one

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        """At most the request's remaining tokens and the budget left (a chunk alone in its round may exceed it)."""
        ...

    def predict(self, request: Request, num_tokens: int, plan: BatchPlan) -> float | None:
        """Seconds of the round with this chunk: asked where a gate has changed it. None if nothing is predicted."""
        return None

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        """Called when prefills are about to be chosen, with the memory that the last round's worker saw."""

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        """Called with each finished round and its time in seconds."""


class StaticBudget(ChunkSizer):
    """All that fits: h = min(remaining, budget - taken) (paper, Eq. 6 and 7)."""

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        return ChunkDecision(min(request.num_remaining_tokens, plan.budget_left))


class DynamicSchedule(ChunkSizer):
    """A budget that shrinks as a prompt progresses, since attention over a long context costs more.

    Sarathi-Serve's schedule: `stages` sizes evenly spaced from `high` down to `low`, rounded to multiples of
    32 (of `low`, where smaller); a stage covers ceil(max_tokens / stages) computed tokens, and prompts beyond
    `max_tokens` stay in the last. As there, the stage's size counts all of the round's tokens.
    """

    def __init__(self, low: int, high: int, max_tokens: int, stages: int) -> None:
        if not 1 <= low <= high:
            raise ValueError(f"low_chunk_size {low}, high_chunk_size {high}: 1 <= low <= high is needed")
        if max_tokens < 1 or stages < 1:
            raise ValueError(f"chunk_schedule_max_tokens {max_tokens}, chunk_schedule_stages {stages}: at least 1")
        unit = min(32, low)
        sizes = np.linspace(low, high, stages, dtype=np.int32)[::-1]
        self.sizes: list[int] = (np.round(sizes / unit) * unit).astype(int).tolist()
        self.tokens_per_stage = -(-max_tokens // stages)

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        stage = min(request.num_computed_tokens // self.tokens_per_stage, len(self.sizes) - 1)
        budget = min(self.sizes[stage], plan.token_budget) - plan.num_tokens
        return ChunkDecision(max(0, min(request.num_remaining_tokens, budget)))


class WholePrompt(ChunkSizer):
    """Prompts are never split: all or nothing, and a prompt above the budget runs in a round of its own."""

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        num_tokens = request.num_remaining_tokens
        return ChunkDecision(num_tokens if num_tokens <= plan.budget_left or not plan.num_tokens else 0)


class LatencyPredictor(Protocol):
    """Tells how long rounds take. What it looks at is its own business; core only asks."""

    def predict(self, request: Request, chunks: np.ndarray, plan: BatchPlan, memory: MemoryStats) -> np.ndarray:
        """Seconds of the round if `request` got each of `chunks` (tokens, ascending) on top of `plan`."""
        ...


class LatencyTarget(ChunkSizer):
    """LPRS: the chunk whose predicted round time comes closest to a target (paper, Eq. 6-11 and Algorithm 1).

    Candidates are 1, h = min(remaining, budget - taken) and the multiples of `delta` up to h. Falling short of the
    target costs `lambda_under` a second and passing it `lambda_over`; of equal scores the larger chunk wins.

    Args:
        predictor: what Eq. 9 asks.
        target_time: T*, seconds.
        delta: search granularity, tokens.
        bias_correction: weight of each measured round in the running correction of predictions; 0 is off. A round's
            prediction was made with the correction of some rounds ago, so with k rounds in flight weights from
            2 sin(pi / (4k - 2)) on would make it swing ever wider: 0.2 is safe up to 8.
        drift_limit: mean relative error of recent predictions above which the static budget decides, until it has
            fallen to half of that; None is off.
    """

    ERROR_WEIGHT = 0.05  # of each round in the mean error that the drift alarm watches
    MAX_LOG_BIAS = math.log(100.0)  # a predictor that is off by more than this factor is no predictor

    def __init__(
        self,
        predictor: LatencyPredictor,
        target_time: float,
        *,
        delta: int,
        lambda_under: float,
        lambda_over: float,
        bias_correction: float = 0.0,
        drift_limit: float | None = None,
    ) -> None:
        self.target_time: float | None = target_time
        self._target = target_time
        self._predictor = predictor
        self._lambda_under = lambda_under
        self._lambda_over = lambda_over
        self._bias_correction = bias_correction
        self._drift_limit = drift_limit
        self._candidates = functools.lru_cache(256)(functools.partial(_candidates, delta))
        self._memory = MemoryStats()
        self._log_bias = 0.0
        self._mean_error = 0.0
        self._is_drifting = False

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        self._memory = memory

    def size(self, request: Request, plan: BatchPlan) -> ChunkDecision:
        largest = min(request.num_remaining_tokens, plan.budget_left)
        if largest <= 0:
            return ChunkDecision(0, None, 0)
        if self._is_drifting:
            return ChunkDecision(largest, self.predict(request, largest, plan), 1, DRIFT_FALLBACK)
        candidates = self._candidates(largest)
        times = self._predict(request, candidates, plan)
        gaps = times - self._target
        scores = np.where(gaps > 0, self._lambda_over * gaps, -self._lambda_under * gaps)
        best = int(np.flatnonzero(scores == scores.min())[-1])  # the last of equals is the largest
        return ChunkDecision(int(candidates[best]), float(times[best]), len(candidates))

    def predict(self, request: Request, num_tokens: int, plan: BatchPlan) -> float:
        return float(self._predict(request, np.array([num_tokens]), plan)[0])

    def _predict(self, request: Request, chunks: np.ndarray, plan: BatchPlan) -> np.ndarray:
        times = np.asarray(self._predictor.predict(request, chunks, plan, self._memory), dtype=np.float64)
        if times.shape != chunks.shape:
            name = type(self._predictor).__name__
            raise ValueError(
                f"{name} answers with shape {times.shape}; {chunks.shape} is needed, seconds for each chunk"
            )
        if np.isnan(times).any():
            raise ValueError(f"{type(self._predictor).__name__} predicts NaN for request {request.request_id!r}")
        return times * math.exp(self._log_bias) if self._log_bias else times

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        """Learn from a round whose prediction is known: the running bias, and the error of the drift alarm.

        A prediction that is no positive number counts as an error of 100 %, which is also the most that counts.
        """
        predicted_time = output.predicted_time
        if predicted_time is None or measured_time <= 0:
            return
        error = 1.0
        if 0 < predicted_time < math.inf:
            error = min(1.0, abs(measured_time - predicted_time) / measured_time)
            log_bias = self._log_bias + self._bias_correction * math.log(measured_time / predicted_time)
            self._log_bias = max(-self.MAX_LOG_BIAS, min(self.MAX_LOG_BIAS, log_bias))
        if self._drift_limit is not None:
            self._mean_error += self.ERROR_WEIGHT * (error - self._mean_error)
            self._is_drifting = self._mean_error > self._drift_limit * (0.5 if self._is_drifting else 1.0)


def _candidates(delta: int, largest: int) -> np.ndarray:
    """{1, largest} and the multiples of delta between them, ascending (Eq. 8)."""
    return np.unique(np.append(np.arange(delta, largest + 1, delta), (1, largest)))
