"""A model on the workers of Ray, one process a rank, on the real clock; and the way from settings to them.

A round goes to every rank in one call and is not waited for there, so the pipeline's stages work on several at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from sarathi.clock import Clock
from sarathi.config import EndpointConfig, RayExecutorConfig
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.errors import FieldError, FlagError
from sarathi.executor.local import OWNERS, LocalParts, round_limits, step_result, worker_settings
from sarathi.executor.ray_cluster import choose_device, reserve
from sarathi.executor.ray_session import join_or_start
from sarathi.executor.ray_worker import MakeWorker
from sarathi.executor.ray_workers import Answers, RayWorkers
from sarathi.worker.batch import WorkerOutput
from sarathi.worker.message import RoundEncoder, RoundMessage

DRAIN_SECONDS = 3.0  # for rounds in flight when a run is broken off


class RayExecutor:
    """Rounds of one engine on workers that other engines may use before and after it.

    Args:
        seed: of the sampling of requests that bring no seed of their own.
        clock: the engine's.
        token_rank: the rank that gives the tokens: the first of the last stage.
        max_inflight_steps: pipeline stages, and one more with overlap.
    """

    def __init__(
        self,
        workers: RayWorkers,
        seed: int,
        clock: Clock,
        *,
        token_rank: int,
        max_inflight_steps: int,
        overlap: bool = False,
    ) -> None:
        self.max_inflight_steps = max_inflight_steps
        self.overlap = overlap
        self._workers = workers
        self._seed = seed
        self._clock = clock
        self._token_rank = token_rank
        self._encoder = RoundEncoder(seed)
        self._inflight: deque[tuple[RoundMessage, Answers]] = deque()

    def submit(self, output: SchedulerOutput) -> None:
        message = self._encoder.encode(output)
        self._inflight.append((message, self._workers.execute(message)))

    def wait(self, until: float | None = None) -> StepResult | None:
        """Times and memory are those of one rank, the slowest and the fullest, as in simulation."""
        message, asked = self._inflight[0]
        given = self._workers.answers(asked, None if until is None else max(0.0, until - self._clock.now()))
        if given is None:
            return None
        self._inflight.popleft()
        return step_result(message, _combined(given, self._token_rank))

    def time_operators(self) -> bool:
        self._workers.call("time_operators")
        return True

    def host_calls(self) -> list[tuple[Any, str, str]]:
        return [(self, "submit", "prepare_inputs_e2e"), (self, "wait", "model_execution_e2e")]

    def shutdown(self) -> None:
        """Waits a while for rounds in flight. Workers that are not through then are ended, and no run can follow."""
        self._inflight.clear()
        self._workers.drain(DRAIN_SECONDS)
        self._encoder = RoundEncoder(self._seed)


def _combined(given: Sequence[WorkerOutput], token_rank: int) -> WorkerOutput:
    slowest = max(given, key=lambda output: output.execution_time)
    fullest = max(given, key=lambda output: output.memory.gpu_mem_used_mb)
    operator_times = slowest.operator_times
    if operator_times is not None:  # other stages have others, and every round tells the same ones
        names = dict.fromkeys(name for output in given for name in output.operator_times or ())
        operator_times = {name: operator_times.get(name, 0.0) for name in names}
    return given[token_rank]._replace(
        execution_time=slowest.execution_time, memory=fullest.memory, operator_times=operator_times
    )


# Whose flag a setting is that workers or the cluster refuse; the others are the model's.
_OWNERS = OWNERS | {
    "address": "ray_executor_config",
    "device": "ray_executor_config",
    "pipeline_parallel_size": "parallel_config",
    "tensor_parallel_size": "parallel_config",
    "timeout": "ray_executor_config",
}


def build_ray(config: EndpointConfig, max_num_seqs: int) -> LocalParts:
    """Start the workers, have them load the model, make their KV caches and warm up. Raises FlagError."""
    try:
        return _build_ray(config, max_num_seqs)
    except FieldError as error:
        flags = {"executor_config_type": "executor_config_type", "resource_mapping": config.worker_places.flag}
        flag = flags.get(error.field, f"{_OWNERS.get(error.field, 'model_config')}_{error.field}")
        raise FlagError(flag, error.text) from error


def _build_ray(config: EndpointConfig, max_num_seqs: int) -> LocalParts:
    from sarathi.model.checkpoint import find_model, open_checkpoint, shape_of
    from sarathi.model.tokenizer import eos_token_ids, load_tokenizer

    settings, model, parallel = config.executor_config, config.model_config, config.parallel_config
    assert isinstance(settings, RayExecutorConfig)
    # First what can be told without workers, which take a while to start.
    tokenizer = load_tokenizer(model.model)
    shape = shape_of(model.model, open_checkpoint(model.model, model.load_format))
    shape.check_parallel(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    join_or_start(settings.address)
    device = choose_device(settings.device)
    make_worker = MakeWorker(
        worker_settings(config) | {"overlap": settings.overlap},
        device=device,
        num_threads=settings.num_threads,
        timeout=settings.timeout,
    )
    workers = RayWorkers(
        reserve(parallel.world_size, device, config.worker_places.mapping),
        make_worker,
        tensor_size=parallel.tensor_parallel_size,
        num_stages=parallel.pipeline_parallel_size,
        timeout=settings.timeout,
    )
    try:
        limits = round_limits(config, shape, max_num_seqs)
        num_blocks = config.cache_config.num_gpu_blocks or min(workers.call("max_num_blocks", **limits))
        workers.call("allocate_kv_cache", num_blocks, **limits)
        workers.call("warm_up", limits["max_num_tokens"])
        description, dtype = workers.call("description")[0], workers.call("dtype")[0]
    except BaseException:
        workers.end("the model could not be loaded")
        raise
    num_stages = parallel.pipeline_parallel_size
    return LocalParts(
        config=config,
        make_executor=lambda clock: RayExecutor(
            workers,
            model.seed,
            clock,
            token_rank=(num_stages - 1) * parallel.tensor_parallel_size,
            max_inflight_steps=num_stages + settings.overlap,
            overlap=settings.overlap,
        ),
        model=shape,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(find_model(model.model)) if tokenizer is None else tokenizer.eos_token_ids,
        num_blocks=num_blocks,
        device=device,
        dtype_bytes=dtype.itemsize,
        close=lambda: workers.end("the model was shut down"),
        notes=[f"{description}, {num_stages} x {parallel.tensor_parallel_size} workers", *workers.names()],
    )
