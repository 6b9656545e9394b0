"""Whole runs through the command line: files, exit codes, determinism, and the paper's workload."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sarathi.benchmark import main as benchmark_main
from sarathi.benchmark import shootout
from sarathi.benchmark.build import build_workload, resolve_system
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import SCHEDULER_CONFIGS, parse_args

SMALL = (
    "--request_generator_config_type=SYNTHETIC",
    "--synthetic_request_generator_config_num_requests=30",
    "--fixed_request_length_generator_config_prefill_tokens=300",
    "--fixed_request_length_generator_config_decode_tokens=20",
    "--poisson_request_interval_generator_config_qps=8",
)


def run_main(tmp_path: Path, *flags: str) -> Path:
    """Run in this process; the folder of the run."""
    assert benchmark_main.main([*flags, f"--output_dir={tmp_path}"]) == 0
    return max(tmp_path.iterdir())


def summary_of(*flags: str) -> dict:
    """A run that writes nothing."""
    config = parse_args([*flags, "--no-metrics_config_write_metrics"])
    result = run_benchmark(config, build_workload(config))
    assert result.directory is None
    return result.summary


def test_a_run_leaves_its_files(tmp_path, capsys):
    directory = run_main(tmp_path, *SMALL, "--metrics_config_enable_chrome_trace")
    names = {path.name for path in directory.iterdir()}
    assert names == {
        "config.yaml", "requests.csv", "rounds.csv", "summary.json", "requests.json", "chrome_trace.json", "plots",
    }  # fmt: skip
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["num_finished"] == 30 and summary["simulated"] is True and summary["device"] == "rtx_4090"
    with (directory / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    for row in rows:
        ttft, decode = float(row["prefill_e2e_time"]), float(row["decode_time_execution_plus_preemption"])
        assert ttft + decode == pytest.approx(float(row["request_e2e_time"]))
        assert float(row["request_execution_time"]) <= float(row["request_e2e_time"]) + 1e-9
    with (directory / "rounds.csv").open() as file:
        assert sum(int(row["batch_num_prefill_tokens"]) for row in csv.DictReader(file)) == 30 * 300
    assert len(list((directory / "plots").glob("*.png"))) == 5
    out = capsys.readouterr().out
    assert "SIMULATED DEVICE" in out and str(directory) in out


def test_config_yaml_gives_the_same_run_again(tmp_path):
    first = run_main(tmp_path / "a", *SMALL, "--scheduler_config_type=AGING", "--seed=7", "--no-metrics_config_plots")
    again = run_main(tmp_path / "b", f"--config={first / 'config.yaml'}")
    for name in ("requests.csv", "rounds.csv"):
        assert (first / name).read_bytes() == (again / name).read_bytes()


def test_same_seed_same_decisions_across_processes(tmp_path):
    """To the last digit, whatever the hash seed; another seed differs."""
    digests = []
    for hash_seed, seed in (("1", "5"), ("2", "5"), ("3", "6")):
        output_dir = tmp_path / f"{hash_seed}"
        flags = [*SMALL, "--simulated_executor_config_jitter=0.05", f"--seed={seed}", "--no-metrics_config_plots"]
        command = [sys.executable, "-m", "sarathi.benchmark.main", *flags, f"--output_dir={output_dir}"]
        subprocess.run(command, env={"PYTHONHASHSEED": hash_seed, "PATH": ""}, check=True, capture_output=True)
        directory = max(output_dir.iterdir())
        digests.append([(directory / name).read_bytes() for name in ("requests.csv", "rounds.csv")])
    assert digests[0] == digests[1] != digests[2]


def test_the_main_job_imports_no_heavy_package(tmp_path):
    program = (
        "import sys; from sarathi.benchmark.main import main\n"
        f"main({[*SMALL, f'--output_dir={tmp_path}', '--no-metrics_config_plots']!r})\n"
        "print([m for m in ('torch', 'ray', 'wandb', 'pandas', 'matplotlib', 'tiktoken') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


BAD = {
    ("--scheduler_config_type=NONE",): "scheduler_config_type",
    ("--sarathi_scheduler_config_chunk_size=0",): "sarathi_scheduler_config_chunk_size",
    ("--interval_generator_config_type=POISSON", "--poisson_request_interval_generator_config_qps=-1"): "qps",
    ("--cache_config_num_gpu_blocks=10",): "cache_config_num_gpu_blocks",
    ("--model_config_max_model_len=99999",): "model_config_max_model_len",
    ("--model_config_max_model_len=30000",): "model_config_max_model_len",
    ("--model_config_model=nobody/nothing",): "nobody/nothing",
    ("--model_config_model=meta-llama/Llama-2-70b-hf",): "Llama-2-70b",
    ("--parallel_config_tensor_parallel_size=5",): "tensor_parallel_size",
    ("--parallel_config_pipeline_parallel_size=5",): "pipeline_parallel_size",
    ("--length_generator_config_type=TRACE",): "trace_file",
    (
        "--length_generator_config_type=TRACE",
        "--trace_request_length_generator_config_trace_file=/no/such.csv",
    ): "/no/such.csv",
    ("--request_generator_config_type=TRACE", "--trace_request_generator_config_trace_file=/no/such.csv"): "such.csv",
    ("--request_generator_config_type=SHAREGPT", "--sharegpt_request_generator_config_file=/no.json"): "/no.json",
    ("--simulated_executor_config_rounds_file=/no/rounds.csv",): "rounds.csv",
    ("--scheduler_config_type=no_such_module.Scheduler",): "no_such_module",
    ("--scheduler_config_type=json.JSONDecoder",): "json.JSONDecoder",
    (
        "--scheduler_config_type=examples.two_lanes.TwoLanesScheduler",
        '--custom_scheduler_config_params={"nonsense": 1}',
    ): "nonsense",
    ("--config=/no/such.yaml",): "/no/such.yaml",
    ("--executor_config_type=LOCAL",): "executor_config_type",
    ("--num_replicas=2",): "num_replicas",
}


@pytest.mark.parametrize("flags", BAD, ids=lambda flags: flags[-1])
def test_bad_input_is_one_line_exit_2_and_nothing_written(flags, tmp_path, capsys):
    try:
        code = benchmark_main.main([*SMALL, *flags, f"--output_dir={tmp_path / 'out'}"])
    except SystemExit as error:
        code = error.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert lines[-1].startswith("error: ") and BAD[flags] in lines[-1]
    assert not any("Traceback" in line for line in lines)
    assert not (tmp_path / "out").exists()


def test_an_output_dir_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert benchmark_main.main([*SMALL, f"--output_dir={tmp_path / 'file'}"]) == 2
    assert "--output_dir" in capsys.readouterr().err


def test_the_context_follows_the_pool_where_it_is_not_set():
    config = parse_args([*SMALL, "--cache_config_num_gpu_blocks=50"])
    system = resolve_system(config, build_workload(config).requests)
    assert system.num_gpu_blocks == 50 and system.max_model_len == 800


def test_a_context_that_is_set_has_longer_prompts_ignored_and_counted():
    summary = summary_of(*SMALL, "--model_config_max_model_len=200", "--cache_config_num_gpu_blocks=50")
    assert summary["num_ignored"] == 30 and summary["num_finished"] == 0
    assert summary["request_e2e_time"]["p99"] is None


def test_the_example_policy_runs_and_helps_short_prompts():
    load = ["--sharegpt_request_generator_config_num_requests=150", "--cache_config_num_gpu_blocks=1000"]
    own = "examples.two_lanes.TwoLanesScheduler"
    fcfs, two_lanes = summary_of(*load), summary_of(*load, f"--scheduler_config_type={own}")
    assert two_lanes["scheduler"] == own and two_lanes["num_finished"] == 150
    assert two_lanes["prefill_e2e_time"]["p50"] < 0.8 * fcfs["prefill_e2e_time"]["p50"]


def test_pipeline_and_tensor_parallel_runs_finish():
    for flag in ("pipeline", "tensor"):
        summary = summary_of(*SMALL, f"--parallel_config_{flag}_parallel_size=2")
        assert summary["num_finished"] == 30 and summary[f"{flag}_parallel_size"] == 2


def test_a_time_limit_counts_the_unfinished():
    summary = summary_of(*SMALL, "--time_limit=1.0")
    assert summary["num_unfinished"] > 0 and summary["num_finished"] + summary["num_unfinished"] < 30


def test_measured_rounds_replace_the_formula(tmp_path):
    """Record on one device, replay another run from its rounds.csv: the times come out alike."""
    recorded = run_main(tmp_path, *SMALL, "--simulated_executor_config_device=h100", "--no-metrics_config_plots")
    from_formula = json.loads((recorded / "summary.json").read_text())
    from_table = summary_of(*SMALL, f"--simulated_executor_config_rounds_file={recorded / 'rounds.csv'}")
    assert from_table["request_e2e_time"]["mean"] == pytest.approx(from_formula["request_e2e_time"]["mean"], rel=0.1)


PAPER = (
    "--sharegpt_request_generator_config_num_requests=200",
    "--sharegpt_request_generator_config_max_prompt_tokens=512",
    "--sharegpt_request_generator_config_output_tokens=512",
    "--static_request_interval_generator_config_interval=0.1",
)


def test_the_papers_workload_gives_its_level():
    """Table 4's FCFS row less its constant: E2E mean 90 and P95 167 s, execution 10.85 s; order cannot matter."""
    rows = {
        name: summary_of(
            *PAPER,
            f"--scheduler_config_type={name}",
            f"--{name.lower()}_scheduler_config_chunk_size=256",
            f"--{name.lower()}_scheduler_config_max_num_seqs=10",
        )
        for name in ("SARATHI", "AGING")
    }
    fcfs = rows["SARATHI"]
    assert fcfs["num_finished"] == 172
    assert fcfs["request_execution_time"]["mean"] == pytest.approx(10.85, rel=0.01)
    assert fcfs["request_e2e_time"]["mean"] == pytest.approx(89.9, rel=0.01)
    assert fcfs["request_e2e_time"]["p95"] == pytest.approx(166.8, rel=0.01)
    assert rows["AGING"]["request_e2e_time"]["mean"] == pytest.approx(fcfs["request_e2e_time"]["mean"], rel=0.01)


def test_aging_leaves_tpot_alone():
    """At equal load the distribution of TPOT is that of FCFS within noise, though the order is another."""
    rows = {
        name: summary_of(
            "--sharegpt_request_generator_config_num_requests=200",
            "--static_request_interval_generator_config_interval=0.25",
            "--cache_config_num_gpu_blocks=20000",
            f"--scheduler_config_type={name.upper()}",
            f"--{name}_scheduler_config_chunk_size=256",
        )
        for name in ("sarathi", "aging")
    }
    assert rows["aging"]["prefill_e2e_time"]["mean"] < 0.9 * rows["sarathi"]["prefill_e2e_time"]["mean"]
    tpot = {name: row["decode_time_execution_plus_preemption_normalized"] for name, row in rows.items()}
    for statistic in ("mean", "p50", "p95"):
        assert tpot["aging"][statistic] == pytest.approx(tpot["sarathi"][statistic], rel=0.02)


def test_shootout_runs_every_scheduler(tmp_path, capsys):
    flags = [
        "--sharegpt_request_generator_config_num_requests=12",
        f"--output_dir={tmp_path}",
        "--no-metrics_config_plots",
    ]
    assert shootout.main(flags) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in SCHEDULER_CONFIGS)
    assert (tmp_path / "comparison.png").exists()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == len(SCHEDULER_CONFIGS)
