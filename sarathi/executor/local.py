"""One worker in this process, on the real clock: a round runs when it is submitted, or meanwhile in a thread.

Owns the way from settings to that worker. Heavy packages are imported when the worker is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sarathi.clock import Clock
from sarathi.config import BaseSchedulerConfig, EndpointConfig, LocalExecutorConfig
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.errors import FieldError, FlagError
from sarathi.executor.base import Executor
from sarathi.request import TokenLogprobs
from sarathi.simulation.models import ModelShape
from sarathi.worker.batch import WorkerOutput
from sarathi.worker.message import RoundEncoder, RoundMessage

if TYPE_CHECKING:
    from sarathi.model.tokenizer import Tokenizer

NO_TOKEN = -1  # the entry of a chunk that gives none


class RoundRunner(Protocol):
    """What this executor asks of its worker."""

    def execute(self, message: RoundMessage) -> WorkerOutput: ...

    def time_operators(self) -> None: ...

    def host_calls(self) -> list[tuple[Any, str, str]]: ...


def step_result(message: RoundMessage, given: WorkerOutput) -> StepResult:
    """A worker's answer with an entry for each sequence of the round, whether it gives a token or not."""
    rows = message.gives_token.nonzero()[0].tolist()
    token_ids = [NO_TOKEN] * len(message.slots)
    for row, token_id in zip(rows, given.token_ids, strict=True):
        token_ids[row] = token_id
    logprobs: list[TokenLogprobs | None] | None = None
    if given.logprobs is not None:
        by_row = dict(zip(rows, given.logprobs, strict=True))
        logprobs = [by_row.get(row) for row in range(len(token_ids))]
    return StepResult(token_ids, given.execution_time, given.memory, logprobs, given.operator_times)


class LocalExecutor:
    """Runs each round to its end in `submit`; with a thread, which then is the only one to touch the worker, in that.

    Args:
        worker: what runs a batch.
        seed: of the sampling of requests that bring no seed of their own.
        clock: the engine's.
        thread: of one worker thread. The next round can then be made while one runs.
    """

    def __init__(self, worker: RoundRunner, seed: int, clock: Clock, thread: ThreadPoolExecutor | None = None) -> None:
        self.worker = worker
        self.overlap = thread is not None
        self.max_inflight_steps = 1 + self.overlap
        self._seed = seed
        self._clock = clock
        self._thread = thread
        self._encoder = RoundEncoder(seed)
        self._results: deque[Future[StepResult]] = deque()

    def submit(self, output: SchedulerOutput) -> None:
        message = self._encoder.encode(output)
        if self._thread is not None:
            self._results.append(self._thread.submit(self._execute, message))
            return
        result: Future[StepResult] = Future()
        result.set_result(self._execute(message))
        self._results.append(result)

    def _execute(self, message: RoundMessage) -> StepResult:
        return step_result(message, self.worker.execute(message))

    def wait(self, until: float | None = None) -> StepResult | None:
        oldest = self._results[0]
        wait([oldest], None if until is None else max(0.0, until - self._clock.now()))
        if not oldest.done():
            return None
        self._results.popleft()
        return oldest.result()

    def time_operators(self) -> bool:
        self.worker.time_operators()
        return True

    def host_calls(self) -> list[tuple[Any, str, str]]:
        """Only those of the scheduler's own thread."""
        own = [(self, "submit", "prepare_inputs_e2e")]
        return own if self._thread is not None else [*own, *self.worker.host_calls()]

    def shutdown(self) -> None:
        """Waits for a round that runs in the thread."""
        wait([result for result in self._results if not result.cancel()])
        self._results.clear()
        self._encoder = RoundEncoder(self._seed)


@dataclass(frozen=True)
class LocalParts:
    """A loaded model with its KV cache, and what the rest of a system has to know of it."""

    config: EndpointConfig  # that the model was loaded with
    make_executor: Callable[[Clock], Executor]  # for one engine after the other
    model: ModelShape
    tokenizer: Tokenizer | None  # None where the model comes without one
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    device: str
    dtype_bytes: int
    notes: list[str]  # what was loaded, one line each
    close: Callable[[], None] = lambda: None  # end what runs it; no engine may follow


def round_limits(config: EndpointConfig, model: ModelShape, max_num_seqs: int) -> dict[str, int]:
    """What a worker's memory has to hold: requests, the tokens of a round, and of a request."""
    longest = min(model.max_model_len, config.model_config.max_model_len or model.max_model_len)
    num_tokens = _longest_round(config.scheduler_config, max_num_seqs, longest)
    return {"max_num_seqs": max_num_seqs, "max_num_tokens": num_tokens, "max_len": longest}


def _longest_round(scheduler: BaseSchedulerConfig, max_num_seqs: int, max_len: int) -> int:
    """Tokens that a round can have; of a scheduler without a token budget, those of one whole prompt."""
    limits = [getattr(scheduler, name, None) for name in ("chunk_size", "high_chunk_size", "max_batched_tokens")]
    return max(max_num_seqs, *(limit for limit in limits if limit), *(() if limits[0] else (max_len,)))


# Whose flag a setting is that a worker refuses, beside the executor's own; the others are the model's.
OWNERS = {
    "attention_backend": "worker_config",
    "gpu_memory_utilization": "worker_config",
    "num_gpu_blocks": "cache_config",
}


def worker_settings(config: EndpointConfig) -> dict[str, Any]:
    """The arguments of Worker that are the same for whichever executor, and on every rank."""
    model = config.model_config
    return {
        "model": model.model,
        "load_format": model.load_format,
        "dtype": model.dtype,
        "seed": model.seed,
        "attention_backend": config.worker_config.attention_backend,
        "block_size": config.cache_config.block_size,
        "gpu_memory_utilization": config.worker_config.gpu_memory_utilization,
    }


def build_local(config: EndpointConfig, max_num_seqs: int) -> LocalParts:
    """Load the model, make its KV cache and warm up. Raises FlagError."""
    try:
        return _build_local(config, max_num_seqs)
    except FieldError as error:
        owner = "local_executor_config" if error.field == "device" else OWNERS.get(error.field, "model_config")
        raise FlagError(f"{owner}_{error.field}", error.text) from error


def _build_local(config: EndpointConfig, max_num_seqs: int) -> LocalParts:
    from sarathi.model.checkpoint import find_model
    from sarathi.model.tokenizer import eos_token_ids, load_tokenizer
    from sarathi.worker.worker import Worker

    local, model = config.executor_config, config.model_config
    assert isinstance(local, LocalExecutorConfig)
    tokenizer = load_tokenizer(model.model)
    thread = ThreadPoolExecutor(1, "worker") if local.overlap else None

    def load() -> tuple[Worker, int]:
        worker = Worker(
            **worker_settings(config), device=local.device, num_threads=local.num_threads, overlap=local.overlap
        )
        limits = round_limits(config, worker.shape, max_num_seqs)
        num_blocks = config.cache_config.num_gpu_blocks or worker.max_num_blocks(**limits)
        worker.allocate_kv_cache(num_blocks, **limits)
        worker.warm_up(limits["max_num_tokens"])
        return worker, num_blocks

    # A CPU's threads belong to the thread that starts them: the model is loaded where it will run.
    worker, num_blocks = load() if thread is None else thread.submit(load).result()
    return LocalParts(
        config=config,
        make_executor=lambda clock: LocalExecutor(worker, model.seed, clock, thread),
        model=worker.shape,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(find_model(model.model)) if tokenizer is None else tokenizer.eos_token_ids,
        num_blocks=num_blocks,
        device=str(worker.device),
        dtype_bytes=worker.dtype.itemsize,
        notes=[worker.description],
    )
