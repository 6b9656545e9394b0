"""Recording in wandb: what an offline run holds, read back from disk, and that no fault there harms the run."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")

from sarathi.benchmark import main as benchmark_main
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.entry_point import INTERRUPTED
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args
from sarathi.metrics import wandb_end, wandb_follower, wandb_process
from sarathi.metrics.run_folder import REQUEST_TEXTS, ROUND_TEXTS
from sarathi.metrics.wandb_follower import WandbFollower
from tests.processes import heed_ctrl_c
from tests.wandb_file import OfflineRun, read_offline_run

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "--executor_config_type=SIMULATED",
    "--scheduler_config_type=LPRS_APC",
    "--request_generator_config_type=SYNTHETIC",
    "--synthetic_request_generator_config_num_requests=12",
    "--fixed_request_length_generator_config_prefill_tokens=300",
    "--fixed_request_length_generator_config_decode_tokens=8",
    "--slo_config_ttft=1",
    "--no-metrics_config_report",
)
WANDB = ("--metrics_config_wandb_project=fair", "--metrics_config_wandb_mode=offline")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without a key, and no setting of wandb's from outside."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("NETRC", str(path / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was not recorded."""
    config = parse_args([*SMALL, f"--output_dir={tmp_path_factory.mktemp('runs')}"])
    directory = run_benchmark(config, build_workload(config)).directory
    assert directory is not None
    return directory


def folder_with(tmp_path: Path, source: Path, *names: str) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    for name in names:
        shutil.copy(source / name.removesuffix(".part"), directory / name)
    return directory


def follow(directory: Path, *flags: str) -> WandbFollower:
    return WandbFollower(directory, parse_args([*SMALL, *WANDB, *flags]), {"scheduler": "A", "simulated": True})


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def numbers(row: dict[str, str]) -> dict[str, float]:
    return {name: float(cell) for name, cell in row.items() if name not in ROUND_TEXTS and cell}


def logged(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited in vain")


def ended(pid: int) -> bool:
    """Whether a process is gone, or dead and nobody has asked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def processes_of(directory: Path) -> list[int]:
    """Processes whose command line names the folder, and their children."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1])
            commands[int(path.name)] = parent, path.joinpath("cmdline").read_bytes()
        except OSError:
            continue
    named = {pid for pid, (_, command) in commands.items() if os.fsencode(directory) in command}
    named |= {pid for pid, (parent, _) in commands.items() if parent in named}
    return sorted(pid for pid in named - {os.getpid()} if not ended(pid))


def check_rounds(run: OfflineRun, rows: list[dict[str, str]]) -> None:
    steps = [row for row in run.history if "batch_size" in row]
    assert [row["_step"] for row in steps] == list(range(len(rows)))
    for recorded, row in zip(steps, rows, strict=True):
        assert logged(recorded) == pytest.approx(numbers(row))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole run from the command line, with every wandb setting; its folder and what it printed."""
    home, output = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("recorded")
    names = ["group=g", "run_name=n", "sweep_id=s1", "run_id=id-7", "tags=a,,b@c,a"]
    command = [sys.executable, "-m", "sarathi.benchmark.main", *SMALL[:-1], *WANDB, f"--output_dir={output}"]
    command += [f"--metrics_config_wandb_{name}" for name in names]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env["HOME"] = str(home)
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert not list(home.rglob("*wandb*")), "all of wandb's files lie in the run's folder"
    (directory,) = output.iterdir()
    return directory, run.stdout


def test_an_offline_run_holds_every_round_and_the_summary(recorded: tuple[Path, str]) -> None:
    directory, _ = recorded
    run = read_offline_run(directory)
    rows = rows_of(directory / "rounds.csv")
    check_rounds(run, rows)
    assert (
        len(rows) > 10 and any(row["predicted_time"] for row in rows) and not all(row["predicted_time"] for row in rows)
    )
    summary = json.loads((directory / "summary.json").read_text())
    for metric in ("request_e2e_time", "prefill_e2e_time", "batch_execution_time"):
        for statistic, value in summary[metric].items():
            assert run.summary[f"{metric}/{statistic}"] == pytest.approx(value)
    assert run.summary["num_finished"] == 12 and run.summary["slo/share_met"] == summary["slo"]["share_met"]
    assert run.summary["fairness/jain_index_slowdown"] == summary["fairness"]["jain_index_slowdown"]
    assert "batch_execution_time" not in run.summary, "the last round is no summary of the run"
    assert run.exit_code == 0


def test_an_offline_run_holds_names_and_settings(recorded: tuple[Path, str]) -> None:
    run = read_offline_run(recorded[0])
    record = run.run
    assert (record.project, record.run_group, record.display_name) == ("fair", "g", "n")
    assert (record.run_id, record.sweep_id, list(record.tags)) == ("id-7", "s1", ["a", "b@c"])
    assert run.config["scheduler"] == "LPRS_APC" and run.config["device"] == "rtx_4090" and run.config["simulated"]
    assert run.config["scheduler_config_type"] == "LPRS_APC" and run.config["lprs_apc_scheduler_config_c_max"] == 6
    assert run.config["fixed_request_length_generator_config_prefill_tokens"] == 300


def test_an_offline_run_holds_requests_plots_and_report(recorded: tuple[Path, str]) -> None:
    directory, _ = recorded
    run = read_offline_run(directory)
    files = run.folder / "files"
    (last,) = [row for row in run.history if "requests/path" in row]
    table = json.loads((files / last["requests/path"]).read_text())
    rows = rows_of(directory / "requests.csv")
    assert table["columns"] == list(rows[0]) and len(table["data"]) == len(rows) == 12
    for cells, row in zip(table["data"], rows, strict=True):
        for cell, (name, text) in zip(cells, row.items(), strict=True):
            assert cell == (text if name in REQUEST_TEXTS else None if text == "" else float(text))
    plots = sorted((directory / "plots").glob("*.png"))
    assert len(plots) >= 5
    for plot in plots:
        assert (files / last[f"plots/{plot.stem}/path"]).read_bytes() == plot.read_bytes()
    assert (files / last["report/path"]).read_bytes() == (directory / "report.html").read_bytes()


def test_the_line_says_where_the_run_is(recorded: tuple[Path, str]) -> None:
    directory, out = recorded
    folder = read_offline_run(directory).folder
    assert "wandb: an offline run; to upload it: " in out and f"wandb sync {folder}\n" in out
    assert folder.is_relative_to(directory)


def test_the_run_itself_imports_no_wandb() -> None:
    code = "import sys, sarathi.metrics.wandb_follower; print('wandb' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "False\n"


def test_several_replicas_are_steps_of_one_run(tmp_path: Path) -> None:
    """Whose rounds.csv comes at the end, and whose step_ids repeat."""
    config = parse_args([*SMALL, "--num_replicas=2", "--no-metrics_config_plots", f"--output_dir={tmp_path / 'runs'}"])
    source = run_benchmark(config, build_workload(config)).directory
    assert source is not None
    rows = rows_of(source / "rounds.csv")
    follower = follow(folder_with(tmp_path, source, "rounds.csv", "requests.csv", "summary.json"))
    assert "WARNING" not in follower.finish(complete=True)
    run = read_offline_run(tmp_path / "run")
    check_rounds(run, rows)
    assert {row["replica_id"] for row in run.history if "replica_id" in row} == {0, 1}
    assert run.run.display_name == "A run", "scheduler and folder where no name is given"


def test_a_run_that_fails_is_recorded_as_failed(tmp_path: Path, finished: Path) -> None:
    directory = folder_with(tmp_path, finished, "rounds.csv.part", "requests.csv.part")
    rows = rows_of(directory / "rounds.csv.part")
    with (directory / "rounds.csv.part").open("a") as file:
        file.write("17,0,0.3")  # the line it was at
    with (directory / "requests.csv.part").open("a") as file:
        file.write("17,0.3")
    assert "WARNING" not in follow(directory).finish(complete=False)
    run = read_offline_run(directory)
    check_rounds(run, rows)
    assert run.exit_code == 1 and run.history[-1]["requests/nrows"] == 12


def test_the_recording_ends_when_the_run_dies(tmp_path: Path, finished: Path) -> None:
    directory = folder_with(tmp_path, finished, "rounds.csv.part")
    code = (
        "import os, sys; from pathlib import Path; from tests.test_wandb import follow\n"
        "follower = follow(Path(sys.argv[1])); print(follower._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(directory)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    wait_until(lambda: ended(int(run.stdout)))
    recorded = read_offline_run(directory)
    check_rounds(recorded, rows_of(directory / "rounds.csv.part"))
    assert recorded.exit_code == 1


def test_a_killed_recorder_is_one_warning(tmp_path: Path, finished: Path) -> None:
    follower = follow(folder_with(tmp_path, finished, "rounds.csv"))
    assert follower._process is not None
    follower._process.kill()
    line = follower.finish(complete=True)
    assert line.startswith("wandb: WARNING: the run was not recorded in full: its process ended with signal 9")
    assert line == follower.finish(complete=True) and str(tmp_path / "run" / "wandb.log") in line


def test_ctrl_c_while_it_is_waited_for_ends_it(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    follower = follow(folder_with(tmp_path, finished, "rounds.csv"))
    monkeypatch.setattr(wandb_follower.select, "select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        follower.finish(complete=True)
    assert follower._process is not None and follower._process.poll() == -signal.SIGTERM


def test_without_wandb_there_is_one_warning_and_the_run_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "wandb.py").write_text("raise ModuleNotFoundError('No module named wandb', name='wandb')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    flags = [*SMALL, *WANDB, "--no-metrics_config_plots", f"--output_dir={tmp_path / 'runs'}"]
    assert benchmark_main.main(flags) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wandb")]
    assert "WARNING" in line and "the package wandb is not installed (extra [wandb])" in line


def test_a_process_that_cannot_start_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    follower = follow(tmp_path)
    assert "no process for it could be started (No such file" in follower.finish(complete=True)
    follower.kill()


def test_a_process_that_is_silent_is_not_waited_for(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_follower, "SILENCE_LIMIT", 0.1)
    follower = follow(folder_with(tmp_path, finished, "rounds.csv", "requests.csv", "summary.json"))
    assert follower._process is not None
    assert f"not done yet; process {follower._process.pid} goes on by itself" in follower.finish(complete=True)
    follower._process.wait(30)
    assert read_offline_run(tmp_path / "run").exit_code == 0, "and loses nothing"


@pytest.mark.parametrize(
    ("environment", "mode", "reason"),
    [
        ({}, "auto", "No API key configured"),
        (
            {"WANDB_API_KEY": "a" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "1"},
            "online",
            "Failed to get resume status",
        ),
    ],
    ids=["no key", "no network"],
)
def test_what_cannot_be_sent_is_kept_offline(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], mode: str, reason: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    directory = folder_with(tmp_path, finished, "rounds.csv", "summary.json")
    line = follow(directory, f"--metrics_config_wandb_mode={mode}", "--metrics_config_wandb_run_id=x").finish(
        complete=True
    )
    assert line.startswith("wandb: an offline run (") and reason in line and "wandb sync" in line
    run = read_offline_run(directory)
    check_rounds(run, rows_of(directory / "rounds.csv"))
    assert run.run.run_id == "x" and run.exit_code == 0


def test_auto_follows_wandb_mode(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    directory = folder_with(tmp_path, finished, "rounds.csv", "summary.json")
    assert follow(directory, "--metrics_config_wandb_mode=auto").finish(complete=True) == (
        "wandb: disabled by WANDB_MODE"
    )


def test_ctrl_c_ends_the_run_and_leaves_no_process(tmp_path: Path) -> None:
    many = "--synthetic_request_generator_config_num_requests=30000"
    command = [sys.executable, "-m", "sarathi.benchmark.main", *SMALL, *WANDB, many, f"--output_dir={tmp_path}"]
    pipe = subprocess.PIPE
    run = subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True, preexec_fn=heed_ctrl_c
    )
    try:
        wait_until(lambda: any(path.stat().st_size > 100_000 for path in tmp_path.glob("*/rounds.csv.part")))
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to every process of the command
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == INTERRUPTED and "interrupted; " in err and "wandb: an offline run" in err
    wait_until(lambda: processes_of(tmp_path) == [])
    (directory,) = (path for path in tmp_path.iterdir() if path.name != "home")
    recorded = read_offline_run(directory)
    assert recorded.exit_code == 1 and len(recorded.history) > 100


class FakeRun:
    """What is used of a wandb run."""

    disabled, offline, url = False, False, "somewhere"

    def __init__(self, starting_step: int = 0) -> None:
        self.starting_step = starting_step
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.metrics: dict[str, dict[str, Any]] = {}

    def log(self, row: dict[str, float], step: int) -> None:
        self.steps.append((step, row))

    def define_metric(self, name: str, **kwargs: Any) -> None:
        self.metrics[name] = kwargs

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def test_rounds_are_recorded_as_the_file_grows(tmp_path: Path) -> None:
    run: Any = FakeRun(starting_step=100)
    rounds = wandb_process.Rounds(run, tmp_path)
    assert rounds.record(10) == 0, "no file yet"
    part = tmp_path / "rounds.csv.part"
    with part.open("w") as file:
        for text, expected in (
            ("step_id,end_time,pre", 0),
            ("fill_chunks,target_time\n0,0.5,16;8,\n1,0.7", 1),
            ("5,24,0.1\n2,1,,\n", 2),
        ):
            file.write(text)
            file.flush()
            assert rounds.record(10) == expected
        part.rename(tmp_path / "rounds.csv")
        file.write("3,2,,\n4,3,,\n5,4,,\n")
    assert [rounds.record(2), rounds.record(2), rounds.record(2)] == [2, 1, 0]
    rows = [{"step_id": 0, "end_time": 0.5}, {"step_id": 1, "end_time": 0.75, "target_time": 0.1}]
    assert run.steps[:2] == [(100, rows[0]), (101, rows[1])], "after those of the run that is continued"
    assert [step for step, _ in run.steps] == list(range(100, 106)) and rounds.step == 106
    assert set(run.metrics) == {"step_id", "end_time", "target_time"}
    assert run.metrics["target_time"] == {"step_metric": "end_time", "summary": "none"}


def test_a_run_that_was_stopped_is_not_kept_waiting_for_all_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rounds.csv.part").write_text("step_id\n" + "".join(f"{i}\n" for i in range(5000)))
    monkeypatch.setattr(wandb_process, "ROUNDS_PER_SIGN", 100)
    for word, expected in ((b"failed", 1000), (b"complete", 5000)):
        monkeypatch.setattr(wandb_process, "MAX_ROUNDS_AFTER_FAILURE", 1000)
        run: Any = FakeRun()
        monkeypatch.setattr(wandb_process, "_open_run", lambda directory, order, run=run: wandb_process.Opened(run, ""))
        read, write = os.pipe()
        os.write(write, b"{}\n" + word + b"\n")
        signs: list[tuple[str, object]] = []
        with open(read, "rb", buffering=0) as orders:
            line = wandb_process._record(tmp_path, orders, lambda *sign, signs=signs: signs.append(sign))
        os.close(write)
        assert len(run.steps) == expected and len(signs) == expected // 100 + 1
        assert run.exit_code == (0 if word == b"complete" else 1)
        assert line == "wandb: somewhere" + "; its last rounds are in rounds.csv.part alone" * (word == b"failed")


def test_a_long_table_of_requests_is_thinned_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_end, "MAX_TABLE_ROWS", 10)
    lines = "".join(f"r{i},{i}\n" for i in range(25))
    (tmp_path / "requests.csv").write_text(f"request_id,arrival_time\n{lines}")
    table, note = wandb_end.requests_table(tmp_path)
    assert table is not None and [row[1] for row in table.data] == list(range(0, 25, 3))
    assert note == "its table holds one in 3 of 25 requests, requests.csv all"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "project=a --no-metrics_config_write_metrics",
            "project: 'a' is not allowed; null where write_metrics is false",
        ),
        ("project=a/b", "project: 'a/b' is not allowed; at most 128 characters, no space at either end, without / "),
        ("project=", "project: '' is not allowed; non-empty text"),
        ("run_id=a:b", "run_id: 'a:b' is not allowed"),
        (f"tags=a,{'b' * 65}", f"tags: 'a,{'b' * 65}' is not allowed; tags of at most 64 characters"),
        ("mode=on", "mode: 'on' is not allowed; one of auto, online, offline"),
    ],
)
def test_names_that_wandb_refuses_are_refused_at_once(
    capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    with pytest.raises(SystemExit):
        parse_args(f"--metrics_config_wandb_{flags}".split(" "))
    assert capsys.readouterr().err.startswith(f"error: --metrics_config_wandb_{message}")


def test_settings_without_a_project_are_said_to_do_nothing(caplog: pytest.LogCaptureFixture) -> None:
    parse_args(["--metrics_config_wandb_group=g", "--metrics_config_wandb_mode=offline"])
    needed = "has no effect without --metrics_config_wandb_project"
    assert [record.getMessage() for record in caplog.records] == [
        f"--metrics_config_wandb_group {needed}",
        f"--metrics_config_wandb_mode {needed}",
    ]
    caplog.clear()
    parse_args(["--metrics_config_wandb_group=g", "--metrics_config_wandb_project=p"])
    assert caplog.records == []
