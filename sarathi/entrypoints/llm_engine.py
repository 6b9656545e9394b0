"""LLMEngine: requests in, texts out, a round a call. What upstream's example scripts drive.

Joins a system (scheduler, executor, clock), a tokenizer and a recorder; decides nothing about rounds.
"""

from __future__ import annotations

import itertools
import logging
import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sarathi.config import SystemConfig, without_effect
from sarathi.core.plan import SchedulerOutput
from sarathi.engine.engine import Engine
from sarathi.engine.outputs import OutputProcessor
from sarathi.errors import FieldError, shown
from sarathi.metrics.recorder import Recorder
from sarathi.metrics.run_record import RunRecord
from sarathi.request import Request, RequestOutput, SamplingParams
from sarathi.system import System, build_system, load_shared_parts

if TYPE_CHECKING:
    from sarathi.executor.local import LocalParts

logger = logging.getLogger(__name__)


class LLMEngine:
    """One engine of its own: a model, a scheduler, and the requests that are under way. Not thread-safe.

    `parts` is a model that is loaded already (`sarathi.system.load_shared_parts`), for engines that follow each other.

    Raises FlagError (a ValueError of one line) for a setting that makes no sense and a model that does not fit.
    """

    def __init__(self, config: SystemConfig, parts: LocalParts | None = None) -> None:
        self.config = config
        output_dir = config.replica_config.output_dir if config.metrics_config.write_metrics else None
        directory = None if output_dir is None else Path(output_dir)
        if directory is not None:  # before a model is loaded for nothing
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FieldError("output_dir", f"cannot write to {directory} ({error.strerror or error})") from error
        self._own_parts = load_shared_parts([config]) if parts is None else None
        self.system: System = build_system(config, parts=parts or self._own_parts)
        for notice in without_effect(config):
            logger.warning("%s", notice)
        if self.system.simulated:
            logger.warning("rounds run on a simulated device (%s): times and tokens are made up", self.system.device)
        for note in self.system.notes:
            logger.info("%s", note)
        self.tokenizer = self.system.tokenizer
        self.outputs = OutputProcessor(self.tokenizer)
        replica_ids = (config.replica_config.replica_id,)
        self._record = RunRecord(config, directory, self.system.metadata(config), replica_ids)
        self.engine = Engine(
            self.system.scheduler,
            self.system.executor,
            self.system.clock,
            self._record.attach(0, self.system, self.outputs),
            stop_rule=self.outputs,
        )
        self._targets = config.slo_config.targets()
        self._refused: list[Request] = []
        self._is_shut_down = False
        self._numbers = itertools.count()

    @classmethod
    def from_system_config(cls, config: SystemConfig) -> LLMEngine:
        """As the constructor; upstream's name."""
        return cls(config)

    def add_request(
        self,
        prompt: str | None,
        sampling_params: SamplingParams | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        arrival_time: float | None = None,
        seq_id: str | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
    ) -> str:
        """Queue a request and return its id.

        A prompt that can never run (empty, or longer than context or KV pool) is not an error here: the next `step`
        returns it as finished, with finish_reason "ignored" and the numbers.

        Args:
            prompt: text; may be None where token ids are given.
            prompt_token_ids: what the text is in tokens; None has the tokenizer say it.
            arrival_time: seconds of the engine's clock, not later than now; None is now.
            seq_id: a name that no unfinished request has; None has one made.

        Raises ValueError in one line for anything else that is not allowed.
        """
        request = self.make_request(
            prompt, sampling_params, prompt_token_ids, arrival_time, seq_id, priority=priority, tenant=tenant
        )
        if not self.engine.add(request):
            self._refused.append(request)
        return request.request_id

    def make_request(
        self,
        prompt: str | None,
        sampling_params: SamplingParams | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        arrival_time: float | None = None,
        seq_id: str | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
    ) -> Request:
        """The request that `add_request` queues."""
        if self._is_shut_down:
            raise RuntimeError("the engine was shut down; make another")
        params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params: {shown(params)} is not allowed; SamplingParams or None")
        if not (seq_id is None or isinstance(seq_id, str)):
            raise ValueError(f"seq_id: {shown(seq_id)} is not allowed; text or None")
        now = self.engine.clock.now()
        if arrival_time is not None and not (isinstance(arrival_time, numbers.Real) and 0 <= arrival_time <= now):
            allowed = f"seconds of the engine's clock, from 0 to now ({now:.3f}), or None for now"
            raise ValueError(f"arrival_time: {shown(arrival_time)} is not allowed; {allowed}")
        if params.stop and self.tokenizer is None:
            raise ValueError(f"SamplingParams.stop: {self.system.model.name} has no tokenizer here to find text with")
        token_ids = self._prompt_token_ids(prompt, prompt_token_ids)
        stops = self._check_token_ids("SamplingParams.stop_token_ids", params.stop_token_ids)
        if params.min_tokens and len({*stops, *self.system.eos_token_ids}) >= self.system.model.vocab_size:
            raise ValueError("SamplingParams.min_tokens: not allowed where every token is a stop token")
        if seq_id is None:
            seq_id = str(next(i for i in self._numbers if str(i) not in self.system.scheduler.requests))
        return Request(
            seq_id,
            token_ids,
            params,
            now if arrival_time is None else arrival_time,
            eos_token_ids=self.system.eos_token_ids,
            prompt=prompt,
            priority=priority,
            tenant=tenant,
            slo=self._targets(tenant),
        )

    def abort_request(self, seq_id: str) -> bool:
        """End a request now, whatever it does; False if no unfinished one has that id. No output follows."""
        request = self.system.scheduler.requests.get(seq_id) if isinstance(seq_id, str) else None
        if request is None or not self.engine.abort(seq_id):
            return False
        self.outputs.forget(request)
        return True

    def step(self) -> list[RequestOutput]:
        """Run one round; the outputs of the requests that got a token or ended, with all they have so far."""
        refused, self._refused = self._refused, []
        output = self.run_round() if self.engine.has_unfinished_requests() else None
        changed = [*refused, *(() if output is None else _changed(output))]
        return [self.outputs.make_output(request) for request in changed]

    def run_round(self) -> SchedulerOutput | None:
        """Run one round without making outputs.

        Raises RuntimeError where requests wait and the scheduler's policies let none of them run.
        """
        output = self.engine.step()
        if output is None:
            self.engine.check_progress()
        return output

    def has_unfinished_requests(self) -> bool:
        """Whether `step` still has something to do or to say."""
        return self.engine.has_unfinished_requests() or bool(self._refused)

    def get_num_unfinished_requests(self) -> int:
        return len(self.system.scheduler.requests)

    def pull_worker_metrics(self) -> dict[str, float]:
        """Device memory as the worker last reported it, MB by name. Workers report with every round."""
        return self.system.scheduler.memory._asdict()

    def plot_metrics(self) -> dict[str, Any]:
        """Close the record: write summary and plots into the replica's output_dir, and return the summary.

        Rounds that run later are in no file; asked again, it returns the same summary. Raises ValueError where no
        output_dir is set.
        """
        directory = self.config.replica_config.output_dir
        if directory is None:
            raise ValueError("ReplicaConfig.output_dir: None is not allowed here; the folder to write plots into")
        if self._close_record():
            for line in self._record.write_views():
                logger.info("%s", line)
        return self._record.summary

    def shutdown(self) -> None:
        """End what runs, its workers too, and write out the record; the engine cannot be used after it.

        What was loaded elsewhere (`parts`) stays as it is, for other engines.
        """
        self._is_shut_down = True
        try:
            self.system.executor.shutdown()
            self._close_record()
            for line in self._record.finish_wandb():
                logger.info("%s", line)
        finally:
            if self._own_parts is not None:
                self._own_parts.close()

    def _close_record(self) -> bool:
        """Whether it was open until now."""
        if self._record.summary:
            return False
        self._record.close([(self.engine.clock.now(), self.system.scheduler.requests.values())])
        self.engine.recorder = Recorder([], {})  # of what comes later
        return True

    def _prompt_token_ids(self, prompt: str | None, token_ids: Sequence[int] | None) -> Sequence[int]:
        if token_ids is not None:
            return self._check_token_ids("prompt_token_ids", token_ids)
        if not isinstance(prompt, str):
            raise ValueError(f"prompt: {shown(prompt)} is not allowed; text, or None with prompt_token_ids")
        if self.tokenizer is None:
            where = "on a simulated device" if self.system.simulated else "here"
            raise ValueError(f"prompt: {self.system.model.name} has no tokenizer {where}; give prompt_token_ids")
        return self.tokenizer.encode(prompt)

    def _check_token_ids(self, name: str, token_ids: Sequence[int]) -> list[int]:
        """As a list of Python's own integers."""
        vocab_size = self.system.model.vocab_size
        if hasattr(token_ids, "tolist"):  # arrays of numpy and torch
            token_ids = token_ids.tolist()  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(token_ids, (list, tuple, range)):
            raise ValueError(f"{name}: {shown(token_ids)} is not allowed; a list of token ids")
        for token_id in token_ids:
            is_integer = isinstance(token_id, numbers.Integral) and not isinstance(token_id, bool)
            if not (is_integer and 0 <= int(token_id) < vocab_size):
                raise ValueError(f"{name}: {shown(token_id)} is not allowed; integers from 0 to {vocab_size - 1}")
        return [int(token_id) for token_id in token_ids]


def _changed(output: SchedulerOutput) -> list[Request]:
    """The round's requests that have got a token or ended: not those with more of their prompt to come."""
    requests = [*output.decodes, *(request for request, _ in output.prefills)]
    return [r for r in requests if r.status.is_finished or not (r.num_inflight_steps or r.queue_entry)]
