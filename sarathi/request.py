"""What one request is and how far it has come.

Only the scheduler writes a request's status, counters and blocks; everybody else reads. Nothing here
knows about queues, executors or clocks.
"""

from __future__ import annotations

import enum
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


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

    Temperature 0 is greedy. The penalties follow the OpenAI API (presence, frequency: subtracted from the logits of
    tokens generated so far) and CTRL (repetition: logits of tokens in prompt or output divided, negative ones
    multiplied). `seed` makes a request's tokens independent of what else runs. `logprobs` asks for the log
    probabilities of the sampled token and that many of the likeliest (0: the sampled one alone). `max_tokens` may be
    0: the prompt is computed and nothing is generated. Before `min_tokens` no stop condition ends generation.

    Raises ValueError naming the field, the value and what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int = 2048
    min_tokens: int = 0
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _tuple((self.stop,) if isinstance(self.stop, str) else self.stop))
        object.__setattr__(self, "stop_token_ids", _tuple(self.stop_token_ids))
        for name, is_allowed, allowed in _SAMPLING_RULES:
            value = getattr(self, name)
            try:
                is_one = value is None or isinstance(value, (numbers.Real, tuple))  # no array, whose answer is one too
                ok = is_one and not isinstance(value, bool) and is_allowed(value)
            except TypeError:
                ok = False
            if not ok:
                raise ValueError(f"SamplingParams.{name}: {value!r} is not allowed; {allowed}")
        if self.min_tokens > self.max_tokens:
            allowed = f"at most max_tokens, which is {self.max_tokens}"
            raise ValueError(f"SamplingParams.min_tokens: {self.min_tokens} is not allowed; {allowed}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


MIN_TEMPERATURE = 1e-5  # below it sampling is greedy: logits divided by less would overflow
MAX_LOGPROBS = 100
_PENALTY = "a number from -2 to 2"
_SAMPLING_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("temperature", lambda value: 0 <= value <= 1000, "a number from 0 to 1000"),
    ("top_p", lambda value: 0 < value <= 1, "a number in (0, 1]"),
    ("top_k", lambda value: _is_int(value) and (value in (-1, 0) or value >= 1), "-1 or 0 (off) or at least 1"),
    ("min_p", lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    ("presence_penalty", lambda value: -2 <= value <= 2, _PENALTY),
    ("frequency_penalty", lambda value: -2 <= value <= 2, _PENALTY),
    ("repetition_penalty", lambda value: 0.01 <= value <= 100, "a number from 0.01 to 100"),
    ("seed", lambda value: value is None or (_is_int(value) and abs(value) < 2**63), "an integer or None"),
    ("stop", lambda value: all(isinstance(s, str) and s for s in value), "non-empty text, or a list of such"),
    ("stop_token_ids", lambda value: all(_is_int(i) and i >= 0 for i in value), "a list of token ids"),
    ("max_tokens", lambda value: _is_int(value) and value >= 0, "an integer of at least 0"),
    ("min_tokens", lambda value: _is_int(value) and value >= 0, "an integer of at least 0"),
    (
        "logprobs",
        lambda value: value is None or (_is_int(value) and 0 <= value <= MAX_LOGPROBS),
        f"None or an integer from 0 to {MAX_LOGPROBS}",
    ),
)


def _tuple(value: Any) -> Any:
    """None and lists as tuples; what is neither is left for the rules to refuse."""
    return () if value is None else tuple(value) if isinstance(value, (list, tuple, set, frozenset, range)) else value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class TokenLogprobs(NamedTuple):
    """Natural log probabilities at one output position, of the model's own distribution: before penalties,
    temperature and truncation."""

    logprob: float  # of the token that was sampled
    rank: int  # how many tokens were likelier, plus 1
    top: tuple[tuple[int, float], ...]  # the likeliest tokens, best first, as (token id, log probability)


class SloTargets(NamedTuple):
    """What a request was promised, in seconds; None promises nothing."""

    ttft: float | None = None  # time to first token
    tpot: float | None = None  # time per output token after the first


NO_TARGETS = SloTargets()


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
        "num_prompt_tokens", "output_logprobs", "output_token_ids", "preempted_time", "preemption_time",
        "prefill_end_time", "priority", "prompt", "prompt_token_ids", "queue_entry", "request_id", "sampling_params",
        "sequence_number", "slo", "status", "tenant", "token_times",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        arrival_time: float,
        *,
        eos_token_ids: Sequence[int] = (),
        prompt: str | None = None,
        priority: int = 0,
        tenant: str = "",
        slo: SloTargets = NO_TARGETS,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling_params = sampling_params
        self.arrival_time = arrival_time
        self.priority = priority
        self.tenant = tenant
        self.slo = slo
        self.status = RequestStatus.WAITING
        self.ignored_reason: str | None = None  # why the scheduler refused it on arrival, with the numbers
        self.output_token_ids: list[int] = []
        self.output_logprobs: list[TokenLogprobs] = []  # one for each output token, where they are asked for
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


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request has given so far; texts and token ids are cumulative.

    finish_reason is "stop", "length", "abort", "ignored" (then `error` says why it can never run) or None. stop_reason
    is the stop string or stop token id that ended it, None where the model's own end of text did.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finished: bool
    finish_reason: str | None
    stop_reason: str | int | None = None
    error: str | None = None

    @property
    def seq_id(self) -> str:
        return self.request_id
