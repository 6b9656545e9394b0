"""What the experiments share: one run through the public settings, with its rounds."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from typing import Any

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import parse_args


def run_with_rounds(
    flags: Sequence[str], workload: Workload | None = None
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The summary and the rows of rounds.csv of the run that `flags` describe, replaying `workload` if given."""
    with tempfile.TemporaryDirectory() as directory:
        config = parse_args([*flags, "--no-write_json_trace", f"--output_dir={directory}"])
        result = run_benchmark(config, workload or build_workload(config))
        assert result.directory is not None
        with (result.directory / "rounds.csv").open(newline="") as file:
            return result.summary, list(csv.DictReader(file))
