"""What a run says on the terminal: the notice of what runs, and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sarathi.config import BenchmarkConfig, LocalExecutorConfig, RayExecutorConfig, SimulatedExecutorConfig
from sarathi.metrics.headline import DISTRIBUTIONS, STATISTICS, replicas_of, terse_metrics
from sarathi.metrics.terminal_table import table_of

MAX_REPLICA_ROWS = 16  # more stand in summary.json and report.html alone


def device_notice(config: BenchmarkConfig) -> str:
    """Says what runs the rounds, and loudly where nothing below was measured on a device."""
    if isinstance(local := config.executor_config, LocalExecutorConfig):
        return f"LOCAL EXECUTOR: {config.model_config.model} in this process (device {local.device}), real time"
    if isinstance(ray := config.executor_config, RayExecutorConfig):
        parallel = config.parallel_config
        workers = f"{parallel.pipeline_parallel_size} stages x {parallel.tensor_parallel_size} workers"
        return f"RAY EXECUTOR: {config.model_config.model} on {workers} (device {ray.device}), real time"
    simulated = config.executor_config
    assert isinstance(simulated, SimulatedExecutorConfig)
    jitter = f", jitter {simulated.jitter:g}" if simulated.jitter else ""
    source = f"round times from {simulated.rounds_file}" if simulated.rounds_file else "round times from a formula"
    line = (
        f"SIMULATED DEVICE: {config.model_config.model} on {simulated.device} "
        f"(engine profile {simulated.engine_profile}{jitter}); no GPU runs, {source}, virtual time"
    )
    return f"{'=' * len(line)}\n{line}\n{'=' * len(line)}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _replicas(summary: Mapping[str, Any]) -> str:
    return f", {replicas_of(summary)} ({summary['routing']})" if "replicas" in summary else ""


def summary_table(summary: Mapping[str, Any]) -> str:
    """One run, a line for each metric with its percentiles, and the counts above them."""
    counts = ", ".join(
        f"{summary[f'num_{word}']:,} {word}" for word in ("finished", "ignored", "aborted", "unfinished")
    )
    lines = [
        f"{summary['scheduler']}, {summary['model']} on {summary['device']}"
        f"{' (simulated)' if summary['simulated'] else ''}{_replicas(summary)}: "
        f"{summary['num_requests']:,} requests: {counts}",
        f"{summary['num_rounds']:,} rounds in {_number(summary['makespan'])} s; {_number(summary['requests_per_s'])} "
        f"requests/s, {_number(summary['output_tokens_per_s'], 1)} output tokens/s; "
        f"{summary['num_preemptions']:,} preemptions; Jain index of slowdown "
        f"{_number(summary['fairness']['jain_index_slowdown'], 3)}",
    ]
    if (slo := summary["slo"])["num_with_target"]:
        lines.append(
            f"targets: {slo['num_met']:,} of {slo['num_with_target']:,} requests met theirs "
            f"({_percent(slo['share_met'])}; TTFT {_percent(slo['share_ttft_met'])}, TPOT "
            f"{_percent(slo['share_tpot_met'])}); goodput {_number(slo['goodput_requests_per_s'])} requests/s"
        )
    if summary["first_ignored"]:
        lines.append(f"ignored, the first of {summary['num_ignored']:,}: {summary['first_ignored']}")
    if summary["reasons"]:
        counted = ", ".join(f"{reason} {count:,}" for reason, count in summary["reasons"].items())
        lines.append(f"policies: {counted}")
    if summary["reasons"].get("drift_fallback"):
        lines.append("drift alarm: the predictor was off too far, and the static budget decided in those cases")
    if summary["prediction"]["num_rounds"]:
        prediction = summary["prediction"]
        share = prediction["share_within_5_percent"]
        aim = "" if share is None else f", {100 * share:.0f} % within 5 % of the target"
        lines.append(
            f"{prediction['num_rounds']:,} rounds with a prediction: MAPE {prediction['mape_percent']:.2f} %{aim}"
        )
    lines.append(f"{'':<28}" + "".join(f"{name:>10}" for name in STATISTICS))
    for row in DISTRIBUTIONS:
        if row.terse:
            cells = [_number(row.of(summary, name)) for name in STATISTICS]
            lines.append(f"{row.label:<28}" + "".join(f"{cell:>10}" for cell in cells))
    replicas = summary.get("replicas", [])
    if 0 < len(replicas) <= MAX_REPLICA_ROWS:
        rows = {str(i): replica for i, replica in enumerate(replicas)}
        lines += ["", comparison_table(rows, "replica")]
    return "\n".join(lines)


def comparison_table(summaries: Mapping[str, Mapping[str, Any]], first: str = "scheduler") -> str:
    """A row for each run, or whatever has a summary; their names stand under `first`."""
    metrics = terse_metrics(list(summaries.values()))
    rows = {name: [metric.show(metric.of(summary)) for metric in metrics] for name, summary in summaries.items()}
    return table_of(rows, first, [metric.label for metric in metrics])
