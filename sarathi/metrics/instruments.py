"""What a run measures and writes beyond its records where settings ask for it: operators, host time, answers.

Nothing of it is in the way of a run that asks for none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sarathi.call_timer import CallTimer
from sarathi.config import MetricsConfig
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.engine.engine import StepRecorder
from sarathi.engine.outputs import OutputProcessor
from sarathi.metrics.operators import OperatorTable
from sarathi.metrics.request_outputs import RequestOutputs
from sarathi.request import Request

if TYPE_CHECKING:
    from sarathi.system import System

logger = logging.getLogger(__name__)


class Instruments:
    """The tables and files of one run, whose replicas may be several. `directory` None writes no file."""

    def __init__(self, config: MetricsConfig, directory: Path | None) -> None:
        self._config = config
        self._directory = directory
        self._with_operators = config.enable_op_level_metrics
        self._operators: OperatorTable | None = None
        self._cpu_operators: OperatorTable | None = None
        self._outputs: RequestOutputs | None = None
        self._timers: list[CallTimer] = []

    def attach(
        self, recorder: StepRecorder, system: System, replica_id: int = 0, outputs: OutputProcessor | None = None
    ) -> StepRecorder:
        """What an engine of this system reports to in place of `recorder`, which hears all that it did.

        `outputs` is what makes the engine's texts, if anything does.
        """
        config, directory = self._config, self._directory
        timer = None
        if self._with_operators:
            if system.executor.time_operators():
                self._operators = self._operators or OperatorTable(directory and directory / "operators.csv")
            else:
                self._with_operators = False  # nor have the other replicas any
                logger.warning("--metrics_config_enable_op_level_metrics has no effect: a rounds_file has no operators")
        if config.enable_cpu_op_level_metrics:
            self._cpu_operators = self._cpu_operators or OperatorTable(directory and directory / "cpu_operators.csv")
            timer = self._timer(recorder, system, outputs)
        if config.enable_request_outputs and not system.simulated and directory is not None:
            self._outputs = self._outputs or RequestOutputs(directory / "outputs.jsonl", system.tokenizer)
        if not (self._operators or timer or self._outputs):
            return recorder
        return _Instrumented(recorder, replica_id, self._operators, self._cpu_operators, timer, self._outputs)

    def _timer(self, recorder: StepRecorder, system: System, outputs: OutputProcessor | None) -> CallTimer:
        timer = CallTimer()
        timer.time(system.scheduler, "schedule", "schedule")
        for call in system.executor.host_calls():
            timer.time(*call)
        timer.time(system.scheduler, "update", "process_model_outputs")
        for method in ("stopped", "make_output") if outputs is not None else ():
            timer.time(outputs, method, "process_model_outputs")
        timer.time(recorder, "on_step", "metrics")
        self._timers.append(timer)
        return timer

    def stop(self) -> None:
        """The rounds are over; whatever was timed is as it was before."""
        for timer in reversed(self._timers):
            timer.stop()
        self._timers.clear()

    def close(self) -> dict[str, Any]:
        """Complete the files, and return what they add to the summary: operators, cpu_operators."""
        self.stop()
        summary: dict[str, Any] = {}
        for name, table in (("operators", self._operators), ("cpu_operators", self._cpu_operators)):
            if table is not None:
                table.close()
                summary[name] = table.summary()
        if self._outputs is not None:
            self._outputs.close()
        return summary


class _Instrumented:
    """A StepRecorder around another one.

    A row of cpu_operators holds what the host has done since the row before. Texts that are made of a round's tokens
    after it was recorded stand in the next row.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        replica_id: int,
        operators: OperatorTable | None,
        cpu_operators: OperatorTable | None,
        timer: CallTimer | None,
        outputs: RequestOutputs | None,
    ) -> None:
        self._recorder = recorder
        self._replica_id = replica_id
        self._operators = operators
        self._cpu_operators = cpu_operators
        self._timer = timer
        self._outputs = outputs

    def on_step(
        self, output: SchedulerOutput, result: StepResult, finished: list[Request], now: float, schedule_time: float
    ) -> None:
        self._recorder.on_step(output, result, finished, now, schedule_time)
        if self._operators is not None and result.operator_times is not None:
            self._operators.add(output.step_id, self._replica_id, result.operator_times)
        self._write(finished)
        if self._cpu_operators is not None and self._timer is not None:
            self._cpu_operators.add(output.step_id, self._replica_id, self._timer.take())

    def on_ignored(self, request: Request) -> None:
        self._recorder.on_ignored(request)
        self._write((request,))

    def on_aborted(self, request: Request) -> None:
        self._recorder.on_aborted(request)
        self._write((request,))

    def _write(self, ended: Iterable[Request]) -> None:
        if self._outputs is not None:
            self._outputs.write(ended)
