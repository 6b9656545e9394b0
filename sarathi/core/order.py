"""Who goes first: the order of prefills. A new order is a class of a few lines here or in your own file."""

from __future__ import annotations

from typing import Protocol

from sarathi.core.plan import BatchPlan, SchedulerOutput
from sarathi.request import Request


class OrderPolicy(Protocol):
    """Ranks waiting and partly computed prompts. Pure: no clock, no log, no I/O.

    Keys live in a heap. A request's key is taken again only when it got a chunk, so a key may depend on the
    request's progress but not on `now` by itself, unless `begin_round` answers True.
    """

    def key(self, request: Request, now: float) -> float:
        """The request with the smallest key goes first; ties go to the earlier arrival."""
        ...

    def begin_round(self, plan: BatchPlan) -> bool:
        """Called with each new round; True has every key recomputed, O(n), for keys that changed by themselves."""
        return False

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        """Called with each finished round and its time in seconds."""


class FCFS(OrderPolicy):
    """First come, first served."""

    def key(self, request: Request, now: float) -> float:
        return request.arrival_time


class ShortestPrefillFirst(OrderPolicy):
    """Fewest remaining prefill tokens first. May starve long prompts for ever."""

    def key(self, request: Request, now: float) -> float:
        return request.num_remaining_tokens


class Aging(OrderPolicy):
    """Highest alpha * waiting time + beta * remaining prefill tokens first (paper, Eq. 1).

    `alpha` in priority per second, > 0; `beta` in priority per token, < 0. alpha * now is the same for all,
    so the heap holds K = -alpha * arrival + beta * remaining (Eq. 4), negated because the smallest comes first.
    """

    def __init__(self, alpha: float, beta: float) -> None:
        if not alpha > 0:
            raise ValueError(f"alpha: {alpha!r} is not allowed; above 0")
        if not beta < 0:
            raise ValueError(f"beta: {beta!r} is not allowed; below 0")
        self.alpha = alpha
        self.beta = beta

    def key(self, request: Request, now: float) -> float:
        return self.alpha * request.arrival_time - self.beta * request.num_remaining_tokens


class AutoAging(Aging):
    """Aging whose alpha is 0.3 * |beta| * the engine's measured prefill tokens per second.

    The rate is that of rounds that held prefills, over the last `window` of them; alpha moves only when the
    rate has moved by more than a tenth, since a move rekeys the queue.
    """

    def __init__(self, beta: float, initial_tokens_per_second: float = 500.0, window: int = 64) -> None:
        super().__init__(0.3 * initial_tokens_per_second * -beta, beta)
        self._window = window
        self._tokens = self._seconds = 0.0
        self._num_rounds = 0
        self._changed = False

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        if not output.num_prefill_tokens or measured_time <= 0:
            return
        self._tokens += output.num_prefill_tokens
        self._seconds += measured_time
        self._num_rounds += 1
        if self._num_rounds < self._window:
            return
        alpha = 0.3 * -self.beta * self._tokens / self._seconds
        if abs(alpha - self.alpha) > 0.1 * self.alpha:
            self.alpha = alpha
            self._changed = True
        self._tokens = self._seconds = 0.0
        self._num_rounds = 0

    def begin_round(self, plan: BatchPlan) -> bool:
        changed, self._changed = self._changed, False
        return changed
