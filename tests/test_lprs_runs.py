"""LPRS and APC with the shipped predictors, through the command line's own path."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from predictor.features import ROUND_COLUMNS, from_rounds
from predictor.model import Predictor
from predictor.shipped import shipped_file
from sarathi.benchmark import main as benchmark_main
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args

PRO_5000 = (
    "--simulated_executor_config_device=rtx_pro_5000_72gb",
    "--simulated_executor_config_jitter=0.01",
    "--sharegpt_request_generator_config_num_requests=150",
    "--sharegpt_request_generator_config_turns=all",
    "--sharegpt_request_generator_config_max_output_tokens=60",
    "--static_request_interval_generator_config_interval=0.05",
    "--model_config_max_model_len=4096",
    "--no-write_json_trace",
)


def run(tmp_path: Path, *flags: str):
    config = parse_args([*PRO_5000, *flags, f"--output_dir={tmp_path}"])
    result = run_benchmark(config, build_workload(config))
    with (result.directory / "rounds.csv").open(newline="") as file:
        return result, list(csv.DictReader(file))


def test_the_shipped_predictor_foretells_rounds_it_has_not_seen(tmp_path):
    """Within the noise of 1 % and a little more, and nearly always within 5 ms."""
    _, rows = run(tmp_path, "--sarathi_scheduler_config_chunk_size=768", "--seed=11")
    columns = {name: np.array([float(row[name]) for row in rows]) for name in ROUND_COLUMNS.values()}
    model = Predictor.load(shipped_file("rtx_pro_5000_72gb", "Qwen/Qwen3-8B"))
    predicted, measured = (
        model.predict_features(from_rounds(columns)),
        np.array([float(row["batch_execution_time"]) for row in rows]),
    )
    assert 100 * np.mean(np.abs(predicted / measured - 1)) < 1.5
    assert np.mean(np.abs(predicted - measured) < 5e-3) > 0.99


def test_rounds_keep_to_the_target_and_are_recorded(tmp_path):
    """Mixed rounds within 5 % of 105 ms: most under LPRS_APC, few under a static budget of 1,024."""
    result, rows = run(tmp_path, "--scheduler_config_type=LPRS_APC", "--lprs_apc_scheduler_config_target_ms=105")
    mixed = [row for row in rows if row["num_prefills"] != "0"]
    assert {row["target_time"] for row in mixed} == {"0.105"}
    assert all(float(row["predicted_time"]) > 0 and int(row["num_candidates"]) > 0 for row in mixed)
    assert all(0 <= int(row["prefill_cap"]) <= 6 for row in mixed)
    assert sum(int(row["num_warm_starts"]) for row in rows) == result.summary["reasons"].get("warm_start", 0)
    assert result.summary["prediction"]["mape_percent"] < 1.5

    def near(rounds):
        times = np.array([float(row["batch_execution_time"]) for row in rounds if row["num_prefills"] != "0"])
        return np.mean(np.abs(times / 0.105 - 1) <= 0.05)

    assert result.summary["prediction"]["share_within_5_percent"] == pytest.approx(near(rows))
    _, static = run(tmp_path, "--sarathi_scheduler_config_chunk_size=1024")
    assert near(rows) > 0.6 and near(static) < 0.2


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--lprs_scheduler_config_predictor_file=/no/such.npz"], "/no/such.npz does not exist"),
        (["--lprs_scheduler_config_predictor_file=README.md"], "is no predictor file, or is damaged"),
        (["--simulated_executor_config_device=h100"], "no predictor is shipped for Qwen/Qwen3-8B on h100"),
        (["--simulated_executor_config_engine_profile=sarathi_2024"], "was trained for engine_profile lean"),
        (["--model_config_dtype=float32", "--model_config_model=smollm2"], "no predictor is shipped for smollm2"),
        (["--parallel_config_tensor_parallel_size=2"], "was trained for tensor_parallel_size 1, not 2"),
        (
            [
                f"--lprs_scheduler_config_predictor_file={shipped_file('rtx_4090', 'Qwen/Qwen3-8B')}",
                "--simulated_executor_config_device=a100_80gb",
            ],
            "was trained for device rtx_4090, not a100_80gb",
        ),
    ],
)
def test_a_predictor_that_does_not_fit_is_told_with_the_command_that_makes_one(flags, problem, tmp_path, capsys):
    assert benchmark_main.main(["--scheduler_config_type=LPRS", *flags, f"--output_dir={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: --lprs_scheduler_config_predictor_file: ") and "\n" not in error
    assert problem in error
    assert "python -m predictor.collect" in error and "python -m predictor.train" in error
    assert not (tmp_path / "out").exists()


def test_the_plot_of_predictions_is_drawn_where_there_are_any(tmp_path):
    flags = ["--sharegpt_request_generator_config_num_requests=20", f"--output_dir={tmp_path}"]
    for scheduler, drawn in (("LPRS", True), ("SARATHI", False)):
        assert benchmark_main.main([*flags, f"--scheduler_config_type={scheduler}"]) == 0
        assert (max(tmp_path.iterdir()) / "plots" / "prediction.png").exists() is drawn
