"""Whole runs through the command line: files, exit codes, determinism, and the paper's workload."""

from __future__ import annotations

import csv
import errno
import json
import logging
import os
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sarathi.benchmark import main as benchmark_main
from sarathi.benchmark import shootout
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.entry_point import BROKEN_PIPE, CANNOT_WRITE, INTERRUPTED
from sarathi.benchmark.progress import progress_bar
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.config import SCHEDULER_CONFIGS, parse_args
from tests.simulate import NO_VIEWS

SMALL = (
    "--request_generator_config_type=SYNTHETIC",
    "--synthetic_request_generator_config_num_requests=30",
    "--fixed_request_length_generator_config_prefill_tokens=300",
    "--fixed_request_length_generator_config_decode_tokens=20",
    "--poisson_request_interval_generator_config_qps=8",
)


@pytest.fixture(autouse=True)
def own_log_level(caplog):
    """Commands set the root logger's level; it is as before for other tests."""
    with caplog.at_level(logging.INFO):
        yield


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
        "token_gaps.csv", "report.html",
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
    assert "system: 884 KV blocks" in out and "workload: every request has 300 prompt" in out


def test_config_yaml_gives_the_same_run_again(tmp_path):
    first = run_main(tmp_path / "a", *SMALL, "--scheduler_config_type=AGING", "--seed=7", *NO_VIEWS)
    again = run_main(tmp_path / "b", f"--config={first / 'config.yaml'}")
    for name in ("requests.csv", "rounds.csv"):
        assert (first / name).read_bytes() == (again / name).read_bytes()


def test_same_seed_same_decisions_across_processes(tmp_path):
    """To the last digit, whatever the hash seed; another seed differs."""
    digests = []
    for hash_seed, seed in (("1", "5"), ("2", "5"), ("3", "6")):
        output_dir = tmp_path / f"{hash_seed}"
        flags = [*SMALL, "--simulated_executor_config_jitter=0.05", f"--seed={seed}", *NO_VIEWS]
        command = [sys.executable, "-m", "sarathi.benchmark.main", *flags, f"--output_dir={output_dir}"]
        subprocess.run(command, env={"PYTHONHASHSEED": hash_seed, "PATH": ""}, check=True, capture_output=True)
        directory = max(output_dir.iterdir())
        digests.append([(directory / name).read_bytes() for name in ("requests.csv", "rounds.csv")])
    assert digests[0] == digests[1] != digests[2]


def test_the_main_job_imports_no_heavy_package(tmp_path):
    program = (
        "import sys; from sarathi.benchmark.main import main\n"
        f"main({[*SMALL, f'--output_dir={tmp_path}', *NO_VIEWS]!r})\n"
        "print([m for m in ('torch', 'ray', 'wandb', 'pandas', 'matplotlib', 'tiktoken') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


FILES = {
    "bad.csv": "arrived_at,num_decode_tokens\n0,1\n",
    "no_turns.json": "[]",
    "turns.json": '[{"conversations": [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d"}]}]',
    "few_rounds.csv": (
        "batch_num_prefill_tokens,batch_num_decode_tokens,sum_decode_context_len,prefill_processed_tokens,"
        "batch_execution_time\n8,0,0,0,0.02\n"
    ),
    "huge_rounds.csv": (
        "batch_num_prefill_tokens,batch_num_decode_tokens,sum_decode_context_len,prefill_processed_tokens,"
        "batch_execution_time\n8,0,0,0,1e7\n"
    ),
    "nul.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1\0,1\n",
    "latin.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1,\udcff\n",
    "deep.json": "[" * 100_000,
    "config.json": '{"num_attention_heads": 0}',
    "refusing.py": (
        "from sarathi.core.scheduler import BaseScheduler\n"
        "class Refusing(BaseScheduler):\n"
        "    def make_order(self):\n"
        "        raise ValueError('weight: -1 is not allowed')\n"
    ),
}
SHAREGPT = "--request_generator_config_type=SHAREGPT --sharegpt_request_generator_config_"
REPLAY = "--request_generator_config_type=TRACE --trace_request_generator_config_"
LENGTHS = "--length_generator_config_type=TRACE --trace_request_length_generator_config_"
OWN = "--scheduler_config_type=examples.two_lanes.TwoLanesScheduler --custom_scheduler_config_params="
# Flags behind those of SMALL, in a folder with FILES; the flag that is at fault, and how what is said of it goes on.
BAD = [
    ("--scheduler_config_type=NONE", "scheduler_config_type", "'NONE' is not known"),
    ("--sarathi_scheduler_config_chunk_size=0", "sarathi_scheduler_config_chunk_size", "0 is not allowed"),
    (
        "--poisson_request_interval_generator_config_qps=-1",
        "poisson_request_interval_generator_config_qps",
        "-1.0 is not allowed",
    ),
    ("--cache_config_num_gpu_blocks=10", "cache_config_num_gpu_blocks", "10 is too small; the workload's longest"),
    ("--model_config_max_model_len=99999", "model_config_max_model_len", "99999 is not allowed; at most 40960"),
    ("--model_config_max_model_len=30000", "model_config_max_model_len", "30000 does not fit"),
    ("--model_config_model=nobody/nothing", "model_config_model", "'nobody/nothing' is neither a known name"),
    ("--model_config_model=.", "model_config_model", "config.json lacks hidden_size"),
    (
        "--model_config_model=meta-llama/Llama-2-70b-hf",
        "model_config_model",
        "model meta-llama/Llama-2-70b-hf does not fit on rtx_4090",
    ),
    ("--parallel_config_tensor_parallel_size=5", "parallel_config_tensor_parallel_size", "5 does not divide"),
    ("--parallel_config_pipeline_parallel_size=5", "parallel_config_pipeline_parallel_size", "5 does not divide"),
    (f"{LENGTHS}max_tokens=9", "trace_request_length_generator_config_trace_file", "a CSV file with columns num_pr"),
    (f"{LENGTHS}trace_file=no.csv", "trace_request_length_generator_config_trace_file", "'no.csv' is not a file"),
    (
        f"{LENGTHS}trace_file=bad.csv",
        "trace_request_length_generator_config_trace_file",
        "bad.csv, line 1: column num_prefill_tokens is missing",
    ),
    (f"{REPLAY}max_tokens=9", "trace_request_generator_config_trace_file", "a CSV file with columns arrived_at"),
    (f"{REPLAY}trace_file=no.csv", "trace_request_generator_config_trace_file", "'no.csv' is not a file"),
    (
        f"{REPLAY}trace_file=bad.csv",
        "trace_request_generator_config_trace_file",
        "bad.csv, line 1: column num_prefill_tokens is missing",
    ),
    (
        "--synthetic_request_generator_config_duration=1e-9",
        "synthetic_request_generator_config_duration",
        "1e-09 is not allowed; the first request arrives",
    ),
    (f"{SHAREGPT}file=no.json", "sharegpt_request_generator_config_file", "'no.json' is not a file"),
    (f"{SHAREGPT}file=no_turns.json", "sharegpt_request_generator_config_file", "no_turns.json holds no answered"),
    (
        f"{SHAREGPT}tokenizer=gpt2",
        "sharegpt_request_generator_config_tokenizer",
        "'gpt2' is not allowed; auto, model, qwen",
    ),
    (
        f"{SHAREGPT}file=turns.json --sharegpt_request_generator_config_max_prompt_tokens=1",
        "sharegpt_request_generator_config_max_prompt_tokens",
        "1 drops all 1 prompts; the shortest has 3",
    ),
    ("--simulated_executor_config_rounds_file=no.csv", "simulated_executor_config_rounds_file", "'no.csv' is not a"),
    (
        "--simulated_executor_config_rounds_file=few_rounds.csv",
        "simulated_executor_config_rounds_file",
        "few_rounds.csv: 1 measured rounds are too few",
    ),
    ("--scheduler_config_type=no_such_module.Scheduler", "scheduler_config_type", "no_such_module.Scheduler cannot be"),
    ("--scheduler_config_type=json.JSONDecoder", "scheduler_config_type", "json.JSONDecoder is no subclass of"),
    (
        OWN + '{"nonsense":1}',
        "custom_scheduler_config_params",
        "examples.two_lanes.TwoLanesScheduler answers TwoLanes.",
    ),
    (
        "--scheduler_config_type=refusing.Refusing",
        "custom_scheduler_config_params",
        "refusing.Refusing answers weight:",
    ),
    ("--model_config_model=" + "x" * 5000, "model_config_model", "'xxx"),
    (f"{SHAREGPT}tokenizer=~nobody/x", "sharegpt_request_generator_config_tokenizer", "'~nobody/x' is not allowed"),
    (f"{SHAREGPT}tokenizer={'x' * 5000}", "sharegpt_request_generator_config_tokenizer", "'xxx"),
    ("--config=no.yaml", "config", "cannot read 'no.yaml'"),
    (
        "--executor_config_type=RAY --ray_executor_config_address=ray://10.0.0.1:10001",
        "ray_executor_config_address",
        "'ray://10.0.0.1:10001' is not allowed; null, auto or the host:port",
    ),
    (
        "--executor_config_type=RAY --ray_executor_config_overlap --parallel_config_pipeline_parallel_size=2",
        "ray_executor_config_overlap",
        "true is not allowed; false with 2 pipeline stages",
    ),
    ("--executor_config_type=RAY --num_replicas=2", "num_replicas", "2 is not allowed; only 1 works with a real"),
    (
        "--executor_config_type=LOCAL --parallel_config_tensor_parallel_size=2",
        "parallel_config_tensor_parallel_size",
        "2 is not allowed; only 1 works with --executor_config_type LOCAL",
    ),
    (
        "--executor_config_type=LOCAL --model_config_load_format=npcache",
        "model_config_load_format",
        "'npcache' cannot be read; one of auto, safetensors, pt, gguf, dummy",
    ),
    ("--executor_config_type=LOCAL --num_replicas=2", "num_replicas", "2 is not allowed; only 1 works with"),
    ("--config=", "config", "cannot read ''"),
    ("--model_config_model=\udcff", "model_config_model", r"'\udcff' is not allowed; text without NUL"),
    *(
        (f"--scheduler_config_type=sarathi.core.variants.{name}Scheduler", "custom_scheduler_config_params", "sarathi.")
        for name in ("Sarathi", "Aging", "LPRS", "APC")
    ),
    (f"{SHAREGPT}file=deep.json", "sharegpt_request_generator_config_file", "deep.json holds no answered"),
    (
        "--simulated_executor_config_rounds_file=huge_rounds.csv",
        "simulated_executor_config_rounds_file",
        "huge_rounds.csv, line 2, column batch_execution_time: 1e+07",
    ),
    (f"{REPLAY}trace_file=nul.csv", "trace_request_generator_config_trace_file", "nul.csv, line 2"),
    (f"{REPLAY}trace_file=latin.csv", "trace_request_generator_config_trace_file", "latin.csv: not a UTF-8 text file"),
]


@pytest.fixture
def in_folder_with_files(tmp_path, monkeypatch) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("flags", "at_fault", "said"), BAD, ids=[flags.split("_config_")[-1][:60] for flags, _, _ in BAD]
)
@pytest.mark.usefixtures("in_folder_with_files")
def test_bad_input_is_one_line_exit_2_and_nothing_written(flags, at_fault, said, tmp_path, capsys):
    try:
        code = benchmark_main.main([*SMALL, *flags.split(), f"--output_dir={tmp_path / 'out'}"])
    except SystemExit as error:
        code = error.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert lines[-1].startswith(f"error: --{at_fault}: {said}")
    assert all("has no effect" in line or "no effect with" in line for line in lines[:-1])  # no bar, no traceback
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_fit_is_told_what_would_help(capsys):
    flags = ["--model_config_model=meta-llama/Llama-2-7b-hf", "--model_config_dtype=float32"]
    assert benchmark_main.main([*SMALL, *flags]) == 2
    err = capsys.readouterr().err
    for flag in ("parallel_config_tensor_parallel_size", "worker_config_gpu_memory_utilization", "model_config_dtype"):
        assert f"--{flag}" in err


@pytest.mark.parametrize(
    "flag",
    [
        "--model_config_model=nobody/nothing",
        "--parallel_config_tensor_parallel_size=5",
        "--model_config_max_model_len=99999",
        "--scheduler_config_type=json.JSONDecoder",
        "--simulated_executor_config_rounds_file=few_rounds.csv",
        "--output_dir=turns.json",
    ],
)
@pytest.mark.parametrize("command", [benchmark_main, shootout])
@pytest.mark.usefixtures("in_folder_with_files")
def test_what_needs_no_workload_is_checked_before_one_is_read(command, flag, monkeypatch):
    def refuse(*args):
        raise AssertionError("too late")

    monkeypatch.setattr("sarathi.benchmark.build.build_workload", refuse)
    assert command.main([flag]) == 2
    with pytest.raises(AssertionError):
        command.main([])


def test_an_output_dir_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for output_dir in (tmp_path / "file", tmp_path / "file" / "below", "x" * 5000):
        assert benchmark_main.main([*SMALL, f"--output_dir={output_dir}"]) == 2
        assert capsys.readouterr().err.startswith("error: --output_dir: cannot write to")


def test_the_context_follows_the_pool_where_it_is_not_set():
    system = build_system(parse_args([*SMALL, "--cache_config_num_gpu_blocks=50"]))
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


def test_a_replayed_trace_takes_all_its_settings(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,600,200\n2,10,4\n9,1,1\n")
    flags = """--request_generator_config_type=TRACE --trace_request_generator_config_num_requests=2
        --trace_request_generator_config_max_tokens=100 --trace_request_generator_config_time_scale_factor=0.5
        --trace_request_generator_config_prefill_scale_factor=0.5 --trace_request_generator_config_decode_scale_factor=2
    """
    workload = build_workload(parse_args([*flags.split(), f"--trace_request_generator_config_trace_file={path}"]))
    assert [spec[1:4] for spec in workload.requests] == [(0.0, 42, 57), (1.0, 5, 8)]
    assert any("max_tokens 100 shortened 1 of 2 rows" in note for note in workload.notes)


def test_measured_rounds_replace_the_formula(tmp_path):
    """Record on one device, replay another run from its rounds.csv: the times come out alike."""
    recorded = run_main(tmp_path, *SMALL, "--simulated_executor_config_device=h100", *NO_VIEWS)
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


CRASHING = """
from sarathi.core.scheduler import BaseScheduler
from tests.simulate import NO_VIEWS
class Crashing(BaseScheduler):
    def schedule(self, now):
        if now > 0.5:
            raise {error}
        return super().schedule(now)
"""
COMMANDS = pytest.mark.parametrize("command", [benchmark_main, shootout], ids=["main", "shootout"])


@pytest.fixture
def crashing(tmp_path, monkeypatch):
    """Makes flags of a run in which the policy raises what is named."""

    def flags(error: str) -> list[str]:
        name = f"crashing_{error.lower()}"
        (tmp_path / f"{name}.py").write_text(CRASHING.format(error=error))
        return [*SMALL, f"--scheduler_config_type={name}.Crashing", f"--output_dir={tmp_path / 'out'}"]

    monkeypatch.syspath_prepend(tmp_path)
    return flags


@COMMANDS
def test_an_interrupted_run_names_its_folder(command, crashing, tmp_path, capsys):
    assert command.main(crashing("KeyboardInterrupt")) == INTERRUPTED
    (directory,) = (tmp_path / "out").iterdir()
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"interrupted; {directory} is incomplete")
    assert {path.name for path in directory.iterdir()} >= {"rounds.csv.part", "requests.csv.part"}


@COMMANDS
@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError])
def test_a_policy_that_crashes_leaves_its_traceback_and_names_the_folder(command, error, crashing, tmp_path):
    """Not one line: the user needs the traceback, and even a ValueError is no setting's fault."""
    with pytest.raises(error) as crash:
        command.main(crashing(error.__name__))
    (directory,) = (tmp_path / "out").iterdir()
    assert [note.startswith(f"{directory} is incomplete") for note in crash.value.__notes__] == [True]


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def full_disk(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


@COMMANDS
@pytest.mark.parametrize(
    ("written", "incomplete"),
    [
        ("sarathi.benchmark.runner._write_json_trace", "; its files that end in .part break off"),
        ("sarathi.metrics.sinks.CsvSink.write_rounds", "; its files that end in .part break off"),
        ("sarathi.metrics.plots.plot_run", ""),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_folder(command, written, incomplete, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(written, full_disk)
    assert command.main([*SMALL, "--scheduler_config_type=SPF", f"--output_dir={tmp_path}"]) == CANNOT_WRITE
    (directory,) = tmp_path.iterdir()
    where = directory if incomplete else directory / "plots"
    said = f"error: cannot write output (No space left on device); {where} is incomplete{incomplete}"
    assert capsys.readouterr().err.splitlines()[-1] == said


@COMMANDS
def test_ctrl_c_is_one_line_wherever_it_falls(command, tmp_path, monkeypatch, capsys):
    def interrupt(*args):
        raise KeyboardInterrupt

    flags = [*SMALL, "--scheduler_config_type=SPF", f"--output_dir={tmp_path}"]
    monkeypatch.setattr("sarathi.metrics.plots.plot_run", interrupt)
    assert command.main(flags) == INTERRUPTED
    assert capsys.readouterr().err.splitlines()[-1].endswith("/plots is incomplete")
    module = types.ModuleType("sarathi.benchmark.build")
    module.__getattr__ = interrupt  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "sarathi.benchmark.build", module)
    assert command.main(flags) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("module", ["main", "shootout"])
def test_commands_import_nothing_heavy_before_they_watch_for_ctrl_c(module):
    program = (
        f"import sys, sarathi.benchmark.{module}; print([m for m in ('numpy', 'sarathi.config') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(("closed", "status"), [("2>&-", 0), (">&- 2>&-", 0), ("2>&- --seed=-1", 2), (">/dev/full", 1)])
def test_closed_and_full_outputs(closed, status, tmp_path):
    flags = [*SMALL, *NO_VIEWS, f"--output_dir={tmp_path / 'out'}"]
    shell = f"{shlex.join([sys.executable, '-m', 'sarathi.benchmark.main', *flags])} {closed}"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60, env=BUFFERED)
    assert done.returncode == status
    if status == 0:
        (directory,) = (tmp_path / "out").iterdir()
        assert (directory / "rounds.csv").read_text().startswith("step_id,")
    assert done.stderr == ("error: cannot write output (No space left on device)\n" if status == 1 else "")


@pytest.mark.parametrize(("flags", "status"), [(SMALL, BROKEN_PIPE), (("--help",), 0)], ids=["run", "help"])
@pytest.mark.parametrize("module", ["main", "shootout"])
def test_a_reader_that_goes_away_ends_the_run_quietly(module, flags, status, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", f"sarathi.benchmark.{module}", *flags, f"--output_dir={tmp_path}"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=BUFFERED)
    os.close(writer)
    assert (done.returncode, done.stderr) == (status, "")


TWELVE = "--sharegpt_request_generator_config_num_requests=12"


def test_shootout_runs_every_scheduler(tmp_path, capsys):
    assert shootout.main([TWELVE, f"--output_dir={tmp_path}", *NO_VIEWS]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in SCHEDULER_CONFIGS)
    assert all(path.is_dir() for path in tmp_path.iterdir())  # no comparison.png
    assert len(list(tmp_path.iterdir())) == len(SCHEDULER_CONFIGS)


def test_shootout_takes_settings_from_a_file_and_draws_its_plots(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text("sharegpt_request_generator_config_num_requests: 12\nscheduler_config: {type: AGING}\nseed: 3")
    assert shootout.main([f"--config={path}", f"--output_dir={tmp_path / 'out'}", "--seed=4"]) == 0
    (directory,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["scheduler"], summary["num_requests"], summary["seed"]) == ("AGING", 12, 4)
    assert (directory / "plots").is_dir() and (tmp_path / "out" / "comparison.png").exists()
    assert str(directory) in capsys.readouterr().out


def test_shootout_writes_nothing_where_metrics_are_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--no-metrics_config_write_metrics", "--scheduler_config_type=SPF", "--log_level=error"]
    assert shootout.main([TWELVE, *flags]) == 0
    assert list(tmp_path.iterdir()) == []
    assert logging.getLogger().level == logging.ERROR


def test_shootout_has_defaults_of_its_own(capsys):
    with pytest.raises(SystemExit):
        shootout.main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: python -m sarathi.benchmark.shootout")
    assert "Requests to take; null takes all (requests; default 200)" in text


def test_without_tqdm_a_run_has_no_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with progress_bar(3, "requests", "req") as on_progress:
        on_progress(2)
