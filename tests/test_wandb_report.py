"""The workspace of panels: what it shows is what runs record, and without an account one line says what is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb_workspaces")

from benchmarks import wandb_report
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import SCHEDULER_CONFIGS, parse_args
from sarathi.metrics.plots import plot_run
from sarathi.metrics.records import ROUND_COLUMNS
from sarathi.metrics.run_folder import ROUND_TEXTS
from sarathi.metrics.wandb_end import flat_summary

FLAGS = (
    "--executor_config_type=SIMULATED",
    "--scheduler_config_type=LPRS_APC",
    "--request_generator_config_type=SYNTHETIC",
    "--synthetic_request_generator_config_num_requests=10",
    "--slo_config_ttft=5",
    "--slo_config_tpot=1",
    "--no-metrics_config_write_metrics",
)


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    """The dry run's JSON."""
    workspace = wandb_report.build_workspace("team", "fair", "Compared", ["a b", "c"])
    return json.loads(workspace._to_model().model_dump_json(by_alias=True, exclude_none=True))["spec"]["section"]


def panels(spec: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    sections = spec["panelBankConfig"]["sections"]
    return [panel["config"] for section in sections for panel in section["panels"] if panel["viewType"] == kind]


def test_panels_show_what_runs_record(spec: dict[str, Any], tmp_path: Path) -> None:
    config = parse_args(FLAGS)
    result = run_benchmark(config, build_workload(config))
    plot_run(result.data, tmp_path)
    bars, lines, media = (panels(spec, kind) for kind in ("Bar Chart", "Run History Line Plot", "Media Browser"))
    shown = {name for config in bars for name in config["metrics"]}
    assert shown <= set(dict(flat_summary(result.summary))) and len(shown) == len(bars) == 30
    columns = set(ROUND_COLUMNS) - set(ROUND_TEXTS)
    assert {name for config in lines for name in config["metrics"]} <= columns
    assert {config["xAxis"] for config in lines} == {"end_time"} <= columns
    plots = {f"plots/{path.stem}" for path in tmp_path.glob("*.png")}
    assert {key for config in media for key in config["mediaKeys"]} <= {*plots, "report"}


def test_runs_are_grouped_and_coloured_by_scheduler(spec: dict[str, Any]) -> None:
    assert {config["groupBy"] for config in panels(spec, "Bar Chart")} == {"scheduler.value"}
    (runs,) = spec["runSets"]
    assert runs["grouping"] == [{"section": "config", "name": "scheduler.value"}]
    (only,) = runs["filters"]["filters"]
    assert only["key"] == {"section": "run", "name": "group"} and only["value"] == ["a b", "c"]
    colours = [colour for key, colour in spec["customRunColors"].items() if key.startswith("run-color-group")]
    assert len(set(colours)) == len(colours) == len(SCHEDULER_CONFIGS)


def test_dry_run_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert wandb_report.main(["--entity=e", "--project=p", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["project"] == "p"


def test_without_an_account_one_line_says_what_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_report.main(["--entity=e", "--project=p"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: No API key configured") and "WANDB_API_KEY" in line and "e/p" in line
