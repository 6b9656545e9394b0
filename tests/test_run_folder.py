"""A run's folder reads back as what was recorded, and a broken one is told in a line."""

from __future__ import annotations

import numpy as np
import pytest

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args
from sarathi.metrics.percentiles import PERCENTILES, counted_percentile
from sarathi.metrics.records import REQUEST_COLUMNS, REQUEST_METRICS, ROUND_COLUMNS
from sarathi.metrics.run_folder import read_run, read_table


@pytest.fixture
def result(tmp_path):
    flags = [
        "--executor_config_type=SIMULATED",
        "--sharegpt_request_generator_config_num_requests=20",
        "--scheduler_config_type=LPRS",
        "--model_config_max_model_len=200",
        f"--output_dir={tmp_path}",
    ]
    config = parse_args(flags)
    return run_benchmark(config, build_workload(config))


def test_a_run_reads_back(result):
    run = read_run(result.directory)
    assert run.summary == result.summary and run.config["seed"] == 42
    assert tuple(run.requests) == REQUEST_COLUMNS and tuple(run.rounds) == ROUND_COLUMNS
    is_finished = run.requests["status"] == "finished"
    assert 0 < is_finished.sum() == result.summary["num_finished"] < 20  # some exceed the context
    for name in REQUEST_METRICS:
        assert np.array_equal(np.sort(run.requests[name][is_finished]), np.sort(result.data.requests[name]), True)
    for name in ("end_time", "batch_execution_time", "batch_num_tokens", "predicted_time", "num_waiting"):
        assert np.allclose(run.rounds[name], result.data.rounds[name], atol=1e-9, rtol=0, equal_nan=True)
    gaps, counts = run.token_gaps
    assert counts.sum() == result.data.token_gaps[1].sum() and (np.diff(gaps) > 0).all()
    expected = result.summary["decode_token_execution_plus_preemption_time"]
    got = {f"p{q}": counted_percentile(gaps, counts.astype(int), q) for q in PERCENTILES}
    assert got == {name: pytest.approx(expected[name], abs=1e-6) for name in got}


def test_what_is_no_run_is_told_in_one_line(result, tmp_path):
    run = result.directory
    with pytest.raises(ValueError, match=r"is not a folder; a run's folder, which holds summary.json"):
        read_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no summary.json: no run's folder"):
        read_run(tmp_path / "empty")
    (tmp_path / "empty" / "rounds.csv.part").touch()
    with pytest.raises(ValueError, match=r"holds no summary.json: the run is not finished"):
        read_run(tmp_path / "empty")
    for name, content, message in (
        ("rounds.csv", "step_id,end_time\n1,2\n3\n", "rounds.csv, line 3: 1 cells, the header has 2"),
        ("rounds.csv", "step_id,end_time\n1,x\n", "rounds.csv, column end_time: could not convert string to float"),
        ("summary.json", "{", "summary.json or config.yaml is broken"),
        ("summary.json", "[]", "holds no mapping"),
        ("config.yaml", "a: [", "summary.json or config.yaml is broken"),
    ):
        kept = (run / name).read_text()
        (run / name).write_text(content)
        with pytest.raises(ValueError, match=message) as error:
            _ = read_run(run).rounds
        assert "\n" not in str(error.value)
        (run / name).write_text(kept)
    (run / "token_gaps.csv").unlink()
    with pytest.raises(ValueError, match=r"holds no token_gaps.csv"):
        read_run(run)


def test_a_table_without_rows_has_its_columns(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n")
    table = read_table(tmp_path / "t.csv", ["b"])
    assert list(table) == ["a", "b"] and len(table["a"]) == len(table["b"]) == 0
