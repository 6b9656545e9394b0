"""What one request is and how far it has come.

Only the scheduler writes a request's status, counters and blocks; everybody else reads. Nothing here
knows about queues, executors or clocks.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class RequestStatus(enum.Enum):
    """Where a request stands. A preempted request is WAITING again, with nothing computed."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_IGNORED = "ignored"

    @property
    def is_finished(self) -> bool:
        return self is not RequestStatus.WAITING and self is not RequestStatus.RUNNING

    @property
    def finish_reason(self) -> str | None:
        return self.value if self.is_finished else None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen and when generation ends.

    `max_tokens` may be 0: the prompt is computed and nothing is generated.
    Raises ValueError naming the field, the value and what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int = 2048

    def __post_init__(self) -> None:
        stop = self.stop
        stop = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
        object.__setattr__(self, "stop", stop)
        for name, ok, allowed in (
            ("temperature", self.temperature >= 0, "a number of at least 0"),
            ("top_p", 0 < self.top_p <= 1, "a number in (0, 1]"),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "-1 (off) or at least 1"),
            ("max_tokens", self.max_tokens >= 0, "an integer of at least 0"),
        ):
            if not ok:
                raise ValueError(f"SamplingParams.{name}: {getattr(self, name)!r} is not allowed; {allowed}")


class Request:
    """One prompt on its way through the engine.

    `num_computed_tokens` is the only progress counter: tokens whose keys and values are computed or being
    computed in a round in flight. It is advanced when a chunk is scheduled and set to 0 by preemption, after
    which generated tokens are computed again like prompt tokens.

    `prompt_token_ids` is any sequence of ints; a workload that knows only lengths passes `range(n)`.
    Times are in seconds of the engine's clock.
    """

    __slots__ = (
        "arrival_time", "block_ids", "eos_token_ids", "execution_time", "finish_time", "first_scheduled_time",
        "ignored_reason", "max_output_tokens", "num_computed_tokens", "num_inflight_steps", "num_preemptions",
        "num_prompt_tokens", "output_token_ids", "preempted_time", "preemption_time", "prefill_end_time",
        "priority", "prompt_token_ids", "queue_entry", "request_id", "sampling_params", "sequence_number",
        "status", "tenant", "token_times",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        arrival_time: float,
        *,
        eos_token_ids: Sequence[int] = (),
        priority: int = 0,
        tenant: str = "",
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling_params = sampling_params
        self.arrival_time = arrival_time
        self.priority = priority
        self.tenant = tenant
        self.status = RequestStatus.WAITING
        self.ignored_reason: str | None = None  # why the scheduler refused it on arrival, with the numbers
        self.output_token_ids: list[int] = []
        self.max_output_tokens = sampling_params.max_tokens  # the scheduler lowers it to what the context holds
        stop = () if sampling_params.ignore_eos else eos_token_ids
        self.eos_token_ids = frozenset((*sampling_params.stop_token_ids, *stop))
        self.num_computed_tokens = 0
        self.num_inflight_steps = 0
        self.num_preemptions = 0
        self.block_ids: list[int] = []
        self.queue_entry: list | None = None  # its place in a RequestHeap, None when in none
        self.sequence_number = 0  # order of submission: the last tie-breaker everywhere
        self.first_scheduled_time: float | None = None
        self.prefill_end_time: float | None = None  # end of the round that finished the prompt, the first time
        self.token_times: list[float] = []  # end of the round that made each output token
        self.finish_time: float | None = None
        self.execution_time = 0.0  # sum of the times of the rounds it took part in
        self.preempted_time: float | None = None  # since when it waits to be computed again
        self.preemption_time = 0.0  # total time between preemption and the next chunk

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens known but not computed: r_i of the paper while it prefills, 1 for a decode that is ready."""
        return self.num_prompt_tokens + len(self.output_token_ids) - self.num_computed_tokens

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, prompt={self.num_prompt_tokens}, "
            f"computed={self.num_computed_tokens}, output={len(self.output_token_ids)})"
        )
