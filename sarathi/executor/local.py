"""One worker in this process: a round runs when it is submitted, on the real clock.

Owns the way from settings to that worker. Heavy packages are imported when the worker is made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sarathi.config import BaseSchedulerConfig, EndpointConfig, LocalExecutorConfig
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.errors import FieldError, FlagError
from sarathi.request import TokenLogprobs
from sarathi.simulation.models import ModelShape
from sarathi.worker.batch import Batch, WorkerOutput, build_batch

if TYPE_CHECKING:
    from sarathi.model.tokenizer import Tokenizer

NO_TOKEN = -1  # the entry of a chunk that gives none


class RoundRunner(Protocol):
    """What this executor asks of its worker."""

    def execute(self, batch: Batch) -> WorkerOutput: ...

    def time_operators(self) -> None: ...

    def host_calls(self) -> list[tuple[Any, str, str]]: ...


class LocalExecutor:
    """Runs each round to its end in `submit`.

    Args:
        worker: what runs a batch.
        seed: of the sampling of requests that bring no seed of their own.
    """

    max_inflight_steps = 1

    def __init__(self, worker: RoundRunner, seed: int) -> None:
        self.worker = worker
        self._seed = seed
        self._results: deque[StepResult] = deque()

    def submit(self, output: SchedulerOutput) -> None:
        batch = build_batch(output, self._seed)
        given = self.worker.execute(batch)
        token_ids = [NO_TOKEN] * batch.num_seqs
        rows = batch.output_seqs.tolist()
        for row, token_id in zip(rows, given.token_ids, strict=True):
            token_ids[row] = token_id
        logprobs: list[TokenLogprobs | None] | None = None
        if given.logprobs is not None:
            by_row = dict(zip(rows, given.logprobs, strict=True))
            logprobs = [by_row.get(row) for row in range(batch.num_seqs)]
        self._results.append(StepResult(token_ids, given.execution_time, given.memory, logprobs, given.operator_times))

    def wait(self, until: float | None = None) -> StepResult:
        return self._results.popleft()

    def time_operators(self) -> bool:
        self.worker.time_operators()
        return True

    def host_calls(self) -> list[tuple[Any, str, str]]:
        return [(self, "submit", "prepare_inputs_e2e"), *self.worker.host_calls()]

    def shutdown(self) -> None:
        self._results.clear()


@dataclass(frozen=True)
class LocalParts:
    """A worker with its KV cache, and what the rest of a system has to know of it."""

    config: EndpointConfig  # that the model was loaded with
    executor: LocalExecutor
    model: ModelShape
    tokenizer: Tokenizer | None  # None where the model comes without one
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    device: str
    dtype_bytes: int
    notes: list[str]  # what was loaded, one line each


def _longest_round(scheduler: BaseSchedulerConfig, max_num_seqs: int, max_len: int) -> int:
    """Tokens that a round can have; of a scheduler without a token budget, those of one whole prompt."""
    limits = [getattr(scheduler, name, None) for name in ("chunk_size", "high_chunk_size", "max_batched_tokens")]
    return max(max_num_seqs, *(limit for limit in limits if limit), *(() if limits[0] else (max_len,)))


# Whose flag a setting is that a worker refuses; the others are the model's.
_OWNERS = {
    "device": "local_executor_config",
    "attention_backend": "worker_config",
    "gpu_memory_utilization": "worker_config",
    "num_gpu_blocks": "cache_config",
}


def build_local(config: EndpointConfig, max_num_seqs: int) -> LocalParts:
    """Load the model, make its KV cache and warm up. Raises FlagError."""
    try:
        return _build_local(config, max_num_seqs)
    except FieldError as error:
        raise FlagError(f"{_OWNERS.get(error.field, 'model_config')}_{error.field}", error.text) from error


def _build_local(config: EndpointConfig, max_num_seqs: int) -> LocalParts:
    from sarathi.model.checkpoint import find_model
    from sarathi.model.tokenizer import eos_token_ids, load_tokenizer
    from sarathi.worker.worker import Worker

    local, model = config.executor_config, config.model_config
    assert isinstance(local, LocalExecutorConfig)
    tokenizer = load_tokenizer(model.model)
    worker = Worker(
        model.model,
        load_format=model.load_format,
        dtype=model.dtype,
        seed=model.seed,
        device=local.device,
        num_threads=local.num_threads,
        attention_backend=config.worker_config.attention_backend,
        block_size=config.cache_config.block_size,
        gpu_memory_utilization=config.worker_config.gpu_memory_utilization,
    )
    context = worker.shape.max_model_len
    longest = min(context, model.max_model_len or context)
    longest_round = _longest_round(config.scheduler_config, max_num_seqs, longest)
    num_blocks = worker.allocate_kv_cache(
        config.cache_config.num_gpu_blocks, max_num_seqs=max_num_seqs, max_num_tokens=longest_round, max_len=longest
    )
    worker.warm_up(longest_round)
    return LocalParts(
        config=config,
        executor=LocalExecutor(worker, model.seed),
        model=worker.shape,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(find_model(model.model)) if tokenizer is None else tokenizer.eos_token_ids,
        num_blocks=num_blocks,
        device=str(worker.device),
        dtype_bytes=worker.dtype.itemsize,
        notes=[worker.description],
    )
