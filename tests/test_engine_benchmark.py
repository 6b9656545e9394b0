"""`make bench-engine` with engines that only pretend: what fails, what is left out, medians, ranges and tokens."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import engine
from benchmarks.engine_jobs import Answer, EngineSettings, JobRequest
from benchmarks.engine_llama import _Client, instruction_sets
from benchmarks.engine_rivals import EngineFailedError, Rival
from benchmarks.engine_turns import Engines, Entry, in_turns, latencies, latency_table, rate_table

ROOT = Path(__file__).resolve().parents[1]
# Reads a script of answers from the settings' model: per job the rate and the token, or what goes wrong.
FAKE = """
import os, sys, time
from benchmarks.engine_jobs import Answer, serve

def load(settings):
    plan = settings.model.split(",")
    if plan[0] == "unstartable":
        raise ValueError("no such model")
    def run(requests, streamed):
        rate, _, token = plan.pop(0).partition(":")
        if rate == "dies":
            raise RuntimeError("out of memory")
        if rate == "hangs":
            time.sleep(60)
        if rate == "torn":
            os.write(3, b"[")
            os._exit(7)
        short = 1 if rate == "short" else 0
        seconds = 1 / float(rate) if not short else 1.0
        return [Answer([int(token or 0)] * (r.num_output_tokens - short),
                       [seconds * (i + 1) for i in range(r.num_output_tokens - short)]) for r in requests]
    return "fake " + os.environ.get("GOMP_SPINCOUNT", "-") + " " + os.environ.get("LD_PRELOAD", "-"), run

serve(load)
"""
SETTINGS = EngineSettings("", 1, 4, 16, 16)
JOBS = [JobRequest([1, 2], 4), JobRequest([3, 4], 4)]
Enter = Callable[..., Entry]


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """An entry whose engine follows a plan; its first job is the warm-up."""
    (tmp_path / "fake_engine.py").write_text(FAKE)
    monkeypatch.chdir(ROOT)

    def entry(plan: str, **own: Any) -> Entry:
        environment = {"PYTHONPATH": str(tmp_path), "GOMP_SPINCOUNT": "5"}
        return Entry(Rival(Path(sys.executable), "fake_engine", lambda: plan, environment), SETTINGS, **own)

    return entry


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_one_that_fails_is_told_of_in_a_line_and_the_others_go_on(enter, capsys):
    before = len(children())
    entries = {
        "ours": enter("1,2:7,4:7,2:7"),
        "dead at once": enter("unstartable"),
        "dies": enter("1,1,dies"),
        "short": enter("1,short"),
        "dead in its warm-up": enter("dies"),
        "slow": enter("1,1:7", num_turns=1, num_requests=1),
    }
    answers = in_turns(entries, JOBS, 3)
    assert list(answers) == ["ours", "slow"] and len(children()) == before
    assert [len(turns) for turns in answers.values()] == [3, 1]
    out = capsys.readouterr().out
    assert "dead at once: left out: ValueError: no such model\n" in out
    assert "dies: failed and left out: RuntimeError: out of memory\n" in out
    assert "short: failed and left out: request 0: 3 token_times where 4 tokens were asked\n" in out
    assert "dead in its warm-up: failed and left out: RuntimeError: out of memory\n" in out
    turns = [line.split()[2] for line in out.splitlines() if line.startswith("turn 1")]
    assert turns == ["ours", "dies", "slow"]


def test_medians_ranges_and_tokens(enter):
    entries = {"ours": enter("1,2:7,4:7,8:7"), "it": enter("1,1:7,8:9,2:7"), "once": enter("1,4:7", num_turns=1)}
    answers = in_turns(entries, JOBS, 3)
    lines = [line.split("  ") for line in rate_table(answers, "ours")]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    # Two requests at once, so twice a request's own rate; ratios 2, 1/2 and 4.
    assert cells[1] == ["ours", "8.0", "4.0 - 16.0", "3", "1.00", "1.00 - 1.00", "6 of 6 requests"]
    assert cells[2] == ["it", "4.0", "2.0 - 16.0", "3", "2.00", "0.50 - 4.00", "4 of 6 requests"]
    assert cells[3] == ["once", "8.0", "8.0 - 8.0", "1", "0.50", "0.50 - 0.50", "2 of 2 requests"]


def test_the_order_is_reversed_in_every_second_turn(enter, capsys):
    in_turns({"a": enter("1,1,1,1"), "b": enter("1,1,1,1")}, JOBS, 3)
    order = [line.split()[2] for line in capsys.readouterr().out.splitlines() if line.startswith("turn")]
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_without_ours_ratios_are_left_out(enter, capsys):
    engine.batch_job({"ours": enter("unstartable"), "it": enter("1,2")}, 2, 4, 1)
    out = capsys.readouterr().out
    assert "ours /" not in out and "same tokens" not in out
    assert out.splitlines()[-1].split() == ["it", "4.0", "4.0", "-", "4.0", "1"]


def test_a_replay_reads_percentiles_over_both_turns(enter, capsys):
    engine.replay_job({"it": enter("1,1,2")}, JOBS, 3.0)
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row == ["it", "2", "0.750", "1.000", "0.750", "1.000", "0.750", "1.000", "3.0"]
    single = [[Answer([1], [0.5])]]  # a request of one token has no time per output token
    assert str(latencies(JOBS[:1], single)[2]) == "nan" and "nan" in latency_table(JOBS[:1], {"it": single})[1]


def test_a_model_that_cannot_be_written_or_an_interpreter_that_is_not_there(enter):
    def broken() -> str:
        raise OSError("disk full\nreally")

    rival = enter("1").rival
    with pytest.raises(EngineFailedError, match=r"^its model could not be written: OSError: disk full really$"):
        rival._replace(model=broken).start(SETTINGS)
    with pytest.raises(EngineFailedError, match=r"^\.venv-none/bin/python is not there: see what `make \.venv-none`"):
        rival._replace(interpreter=Path(".venv-none/bin/python")).start(SETTINGS)
    with pytest.raises(EngineFailedError, match=r"^could not be started: "):
        rival._replace(interpreter=ROOT / "setup.py").start(SETTINGS)


def test_an_environment_is_the_engines_own(enter, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "123")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    running = enter("1").rival.start(SETTINGS)
    name = running.name
    environment = psutil.Process(running._process.pid).environ()
    running.stop()
    assert name == "fake 5 -" and "OMP_NUM_THREADS" not in environment


def test_a_torn_answer_is_a_failure(enter, capsys):
    with Engines() as engines:
        engines.start({"it": enter("torn")})
        assert engines.run("it", JOBS) is None and "it" not in engines
    assert "it: failed and left out: ended with status 7\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--threads 0", "--threads: 0 is not allowed; 1 to "),
        ("--repeats 0", "--repeats: 0 is not allowed; at least 1"),
        ("--requests 0", "--requests: 0 is not allowed; at least 1"),
        ("--replayed -3", "--replayed: -3 is not allowed; at least 0"),
        ("--output-tokens 129", "--output-tokens: 129 is not allowed; at most 128"),
        ("--rate -1", "--rate: -1 is not allowed; above 0"),
        ("--rate nan", "--rate: nan is not allowed; above 0"),
        ("--target-ms inf", "--target-ms: inf is not allowed; above 0"),
        ("--predictor nowhere.npz", "--predictor: predictor file: nowhere.npz does not exist"),
    ],
)
def test_a_bad_flag_is_one_line_before_anything_starts(flags, said, capsys):
    assert engine.main(flags.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(said) and err.count("\n") == 1


def test_sigterm_ends_the_engines(enter, tmp_path):
    enter("")
    script = f"""
import sys
from pathlib import Path
from benchmarks import engine
from benchmarks.engine_rivals import Rival
from benchmarks.engine_turns import Entry
from benchmarks.engine_jobs import EngineSettings
rival = Rival(Path(sys.executable), "fake_engine", lambda: "1,hangs", {{"PYTHONPATH": {str(tmp_path)!r}}})
engine.batch_entries = lambda threads: {{"ours": Entry(rival, EngineSettings("", 1, 4, 16, 16))}}
engine.main(["--threads", "1", "--requests", "2", "--output-tokens", "4", "--replayed", "0"])
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert any(line.startswith("  ours: fake") for line in process.stdout)
        time.sleep(0.3)  # into the job
        engines = psutil.Process(process.pid).children(recursive=True)
        assert engines
        try:
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == engine.TERMINATED
            assert not psutil.wait_procs(engines, timeout=2)[1]
        finally:
            for orphan in engines:
                with suppress(psutil.NoSuchProcess):
                    orphan.kill()


def test_a_server_that_cannot_be_reached_is_a_failure():
    client = _Client("127.0.0.1", 1, JobRequest([1], 4), streamed=False)
    client.begin(time.perf_counter())
    with pytest.raises(RuntimeError, match=r"^llama\.cpp did not answer a request: ConnectionRefusedError"):
        client.end()


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (
            "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | FMA = 1 | ",
            "a wheel built for AVX2, so no verdict on llama.cpp itself",
        ),
        ("CPU : AVX2 = 1 | AVX512 = 1 | AVX512_BF16 = 1 | ", "a wheel built for AVX512_BF16"),
        ("", "instruction set not told"),
    ],
)
def test_instruction_sets(told, read):
    assert instruction_sets(told) == read
