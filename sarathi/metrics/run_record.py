"""All that is kept of one run, whose replicas may be several: tables, summary, plots, report, and its copy in wandb.

Engines report to what `attach` gives; nothing here runs or times anything.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sarathi.config import EndpointConfig
from sarathi.engine.engine import StepRecorder
from sarathi.engine.outputs import OutputProcessor
from sarathi.errors import told_if_incomplete
from sarathi.metrics.instruments import Instruments
from sarathi.metrics.merge import merge_runs, merge_tables
from sarathi.metrics.recorder import Recorder
from sarathi.metrics.records import RunData
from sarathi.metrics.sinks import table_sinks, write_end
from sarathi.metrics.summary import summarize
from sarathi.request import Request

if TYPE_CHECKING:
    from sarathi.metrics.wandb_follower import WandbFollower
    from sarathi.system import System

logger = logging.getLogger(__name__)


class RunRecord:
    """The record of a run; `summary` and `data` are there once it is closed.

    Args:
        config: says what is written beside the tables.
        directory: the run's folder, which exists; None writes nothing.
        metadata: what heads the summary (scheduler, device, simulated, seed, ...).
        replica_ids: of the replicas. The files of one go into the run's folder; those of several into folders
            `replica_<id>` in it, and the run's then hold all of them.
    """

    def __init__(
        self,
        config: EndpointConfig,
        directory: Path | None,
        metadata: Mapping[str, object],
        replica_ids: Sequence[int] = (0,),
    ) -> None:
        self.directory = directory
        self.summary: dict[str, Any] = {}
        self.data: RunData  # columns, of all replicas
        self._config = config.metrics_config
        self._metadata = dict(metadata)
        self._folders = [directory]
        if len(replica_ids) > 1:
            self._folders = [directory and directory / f"replica_{replica_id}" for replica_id in replica_ids]
        self._recorders = [
            Recorder(
                table_sinks(folder, self._config.enable_chrome_trace),
                self._metadata if len(replica_ids) == 1 else {**metadata, "replica_id": replica_id},
                replica_id,
            )
            for folder, replica_id in zip(self._folders, replica_ids, strict=True)
        ]
        self._instruments = Instruments(self._config, directory)
        self._wandb = self._follow(config)

    def attach(self, index: int, system: System, outputs: OutputProcessor | None = None) -> StepRecorder:
        """What the engine of replica `index` reports to; `outputs` is what makes its texts, if anything does."""
        recorder = self._recorders[index]
        return self._instruments.attach(recorder, system, recorder.replica_id, outputs)

    @property
    def num_ended(self) -> int:
        """Requests recorded so far."""
        return sum(recorder.num_ended for recorder in self._recorders)

    def stop(self) -> None:
        """The rounds are over, whether or not they came to their end."""
        self._instruments.stop()

    def close(self, ends: Sequence[tuple[float, Iterable[Request]]]) -> None:
        """Write out everything. `ends`: for each replica the time of its end, seconds, and its unfinished requests."""
        extra = self._instruments.close()
        parts = [recorder.close(*end) for recorder, end in zip(self._recorders, ends, strict=True)]
        if len(parts) > 1:
            summaries = [summarize(part) for part in parts]
            extra["replicas"] = summaries
            if self.directory is not None:
                folders = [folder for folder in self._folders if folder is not None]
                for folder, summary, part in zip(folders, summaries, parts, strict=True):
                    write_end(folder, summary, part)
                merge_tables(folders, self.directory)
        self.data = parts[0] if len(parts) == 1 else merge_runs(parts, self._metadata)
        self.summary = {**summarize(self.data), **extra}
        if self.directory is not None:
            write_end(self.directory, self.summary, self.data)

    def write_views(self) -> list[str]:
        """Draw plots and report as the settings ask, and complete the copy in wandb; a line for each: where it is."""
        if self.directory is None:
            return []
        lines = []
        try:
            if self._config.plots:
                lines.append(self._write_plots(self.directory / "plots"))
            if self._config.report:
                lines += self._write_report(self.directory)
        except BaseException as error:
            self.fail(error)
            raise
        return [*lines, *self.finish_wandb()]

    def finish_wandb(self) -> list[str]:
        """Wait until wandb's copy is complete; the line that says where it is, or nothing without one."""
        follower, self._wandb = self._wandb, None
        return [] if follower is None else [follower.finish(complete=True)]

    def fail(self, error: BaseException) -> None:
        """The run ends by `error`: wandb's copy is marked as failed, and `error` tells where it is."""
        follower, self._wandb = self._wandb, None
        if follower is not None:
            error.add_note(follower.finish(complete=False))

    def _follow(self, config: EndpointConfig) -> WandbFollower | None:
        if self._config.wandb_project is None:
            return None
        if self.directory is None:
            logger.warning("wandb_project has no effect: no output_dir is set, whose files wandb gets")
            return None
        from sarathi.metrics.wandb_follower import WandbFollower

        return WandbFollower(self.directory, config, self._metadata)

    def _write_plots(self, directory: Path) -> str:
        from sarathi.metrics.plots import plot_run

        with told_if_incomplete(directory):
            plot_run(self.data, directory)
        return f"plots: {directory}"

    def _write_report(self, directory: Path) -> list[str]:
        if importlib.util.find_spec("plotly") is None:
            logger.warning("no report.html: the package plotly is not installed (pip install plotly)")
            return []
        from sarathi.metrics.html.run_report import write_run_report

        with told_if_incomplete(directory / "report.html"):
            return [f"report: {write_run_report(directory)}"]
