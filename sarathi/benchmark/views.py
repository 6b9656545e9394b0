"""What a finished run is shown by, made from its files: PNG plots, report.html, and its copy in wandb."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from sarathi.benchmark.runner import RunResult, told_if_incomplete
from sarathi.config import BenchmarkConfig, MetricsConfig

logger = logging.getLogger(__name__)


def write_views(config: BenchmarkConfig, result: RunResult) -> list[str]:
    """Write what the settings ask for into the run's folder; one line for each thing, saying where it is."""
    if result.directory is None:
        return []
    try:
        lines = _write_files(config.metrics_config, result, result.directory)
    except BaseException as error:
        if result.wandb is not None:
            error.add_note(result.wandb.finish(complete=False))
        raise
    return lines if result.wandb is None else [*lines, result.wandb.finish(complete=True)]


def _write_files(metrics: MetricsConfig, result: RunResult, directory: Path) -> list[str]:
    lines = []
    if metrics.plots:
        from sarathi.metrics.plots import plot_run

        with told_if_incomplete(directory / "plots"):
            plot_run(result.data, directory / "plots")
        lines.append(f"plots: {directory / 'plots'}")
    if metrics.report:
        if importlib.util.find_spec("plotly") is None:
            logger.warning("no report.html: the package plotly is not installed (pip install plotly)")
        else:
            from sarathi.metrics.html.run_report import write_run_report

            with told_if_incomplete(directory / "report.html"):
                lines.append(f"report: {write_run_report(directory)}")
    return lines
