"""How many prefills at once: the gate that each proposed chunk passes."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from sarathi.core.plan import BatchPlan, MemoryStats, SchedulerOutput
from sarathi.request import Request, RequestStatus

REFUSED_BY_CAP: Final = "refused_by_cap"
REFUSED_BY_MIN_CHUNK: Final = "refused_by_min_chunk"
WARM_START: Final = "warm_start"


class GateVerdict(NamedTuple):
    num_tokens: int  # the chunk to take, 0 refuses
    reason: str | None = None  # a label, counted for the round's record
    ends_scan: bool = False  # nothing behind this one can pass either
    release: bool = False  # a partial prompt that is refused gives its blocks back and waits again, once at most


class PrefillGate(Protocol):
    """Accepts, shrinks, grows or refuses a chunk. Pure: no clock, no log, no I/O.

    A refused request keeps its blocks and its place. After a waiting one only partial prompts are looked at, so
    that a long queue behind it costs nothing. A gate must not refuse a request that has the engine to
    itself for ever: nothing would ever run.
    """

    cap: int | None = None  # active prefills that this round allows, where the gate caps them

    def review(self, request: Request, num_tokens: int, plan: BatchPlan) -> GateVerdict: ...

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        """Called when prefills are about to be chosen, with the memory that the last round's worker saw."""

    def observe(self, output: SchedulerOutput, measured_time: float) -> None:
        """Called with each finished round and its time in seconds."""


class OpenGate(PrefillGate):
    """Everything passes."""

    def review(self, request: Request, num_tokens: int, plan: BatchPlan) -> GateVerdict:
        return GateVerdict(num_tokens)


class ActivePrefillControl(PrefillGate):
    """APC: few prefills at a time, none of them negligible (paper, Eq. 12-14).

    A chunk passes if fewer than C_t prefills are active and it has at least m = min(remaining, `l_min`) tokens, with
    C_t = min(`c_max`, seats - decodes, (budget - taken) // `l_min`) taken once a round, when its decodes are in.
    Otherwise, while the round holds no prefill yet, the prompt gets a warm start of min(h, m) tokens, whichever of the
    two tests it failed: Eq. 14 as printed would refuse for ever where C_t is 0. A refusal by the cap ends the scan.

    Args:
        cap_scope: what counts as active: "round", the prefills this round has taken, or "unfinished", every other
            prompt that is admitted and not complete.
        on_defer: a partial prompt that is refused keeps its KV ("pause") or gives it back ("release"), the latter
            once: given back at each refusal, a long prompt among short ones would start over for ever.
    """

    def __init__(self, c_max: int, l_min: int, max_num_seqs: int, cap_scope: str, on_defer: str) -> None:
        self._c_max = c_max
        self._l_min = l_min
        self._max_num_seqs = max_num_seqs
        self._counts_unfinished = cap_scope == "unfinished"
        self._release = on_defer == "release"
        self.cap: int | None = 0

    def begin_round(self, plan: BatchPlan, memory: MemoryStats) -> None:
        self.cap = min(self._c_max, self._max_num_seqs - len(plan.decodes), plan.budget_left // self._l_min)

    def review(self, request: Request, num_tokens: int, plan: BatchPlan) -> GateVerdict:
        assert self.cap is not None
        num_active = len(plan.prefills)
        if self._counts_unfinished:
            is_partial = request.status is RequestStatus.RUNNING
            num_active = plan.num_partial + plan.num_admitted - is_partial
        least = min(request.num_remaining_tokens, self._l_min)
        if num_active < self.cap and num_tokens >= least:
            return GateVerdict(num_tokens)
        if not plan.prefills:
            return GateVerdict(min(plan.budget_left, least), WARM_START)
        if num_active >= self.cap:
            return GateVerdict(0, REFUSED_BY_CAP, ends_scan=True, release=self._release)
        return GateVerdict(0, REFUSED_BY_MIN_CHUNK, release=self._release)
