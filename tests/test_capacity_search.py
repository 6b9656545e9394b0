"""The capacity search: rates, quantiles, cases with a known answer, and what a kill, a fault or a change leaves."""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sarathi.benchmark.capacity_search.config import read_jobs
from sarathi.benchmark.capacity_search.latencies import Latencies, quantile_of
from sarathi.benchmark.capacity_search.main import _num_workers, main
from sarathi.benchmark.capacity_search.options import Slo, parse_options
from sarathi.benchmark.capacity_search.pool import Outcome
from sarathi.benchmark.capacity_search.probe import REUSED, probe_config
from sarathi.benchmark.capacity_search.report import capacity_table, remarks
from sarathi.benchmark.capacity_search.search import find_capacity
from sarathi.benchmark.capacity_search.worker import Failure, for_wandb, search_job
from sarathi.benchmark.entry_point import INTERRUPTED
from sarathi.config import LprsSchedulerConfig, to_dict
from sarathi.core.scheduler import BaseScheduler
from sarathi.errors import FlagError
from tests.processes import heed_ctrl_c

PROMPT, OUTPUT, NUM_REQUESTS = 100, 10, 30
ROUND, PER_PROMPT_TOKEN = 0.05, 0.001  # seconds of the measured table: what a request takes is known
FIRST = ROUND + PER_PROMPT_TOKEN * PROMPT
SERVICE = FIRST + (OUTPUT - 1) * ROUND
LAST = NUM_REQUESTS - 1


class DyingScheduler(BaseScheduler):
    """Takes its process along, as running out of memory does."""

    def schedule(self, now):
        os._exit(7)


class BrokenScheduler(BaseScheduler):
    def schedule(self, now):
        raise ZeroDivisionError("no round")


@pytest.fixture(autouse=True)
def own_log_level(caplog):
    with caplog.at_level(logging.INFO):
        yield


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with lengths.csv, rounds.csv, and search.yml: one_seat and many_seats, static arrivals."""
    (tmp_path / "lengths.csv").write_text(
        "num_prefill_tokens,num_decode_tokens\n" + f"{PROMPT},{OUTPUT}\n" * NUM_REQUESTS
    )
    rows = ["batch_num_prefill_tokens,batch_num_decode_tokens,sum_decode_context_len,prefill_processed_tokens,"
            "batch_execution_time"]  # fmt: skip
    for prefill in (0, 50, 100, 150, 200):
        for decode in (1, 4, 9):
            rows.append(f"{prefill},{decode},{decode * 100 + prefill % 30},0,{ROUND + PER_PROMPT_TOKEN * prefill}")
    (tmp_path / "rounds.csv").write_text("\n".join(rows) + "\n")
    write_yaml(tmp_path)
    return tmp_path


def content_of(folder: Path) -> dict:
    return {
        "schedulers": [
            {"name": "one_seat", "scheduler": "sarathi", "chunk_size": 512, "batch_size": 1},
            {"name": "many_seats", "scheduler": "Sarathi", "chunk_size": 512, "batch_size": 8},
        ],
        "traces": [
            {
                "name": "fixed",
                "trace_file": str(folder / "lengths.csv"),
                "max_seq_len": 1024,
                "num_requests": NUM_REQUESTS,
                "start_qps": 1,
                "interval_generator": "STATIC",
            }
        ],
        "parallel_spec": [{"name": "tp_1", "tp_dimension": 1, "pp_dimension": 1}],
        "models": [{"name": "qwen", "identifier": "Qwen/Qwen3-8B", "scheduler_specs": None}],
    }


def write_yaml(folder: Path, **changes: object) -> Path:
    path = folder / "search.yml"
    path.write_text(yaml.safe_dump({**content_of(folder), **changes}))
    return path


def flags_of(folder: Path, *more: str) -> list[str]:
    return [
        f"--config-path={folder / 'search.yml'}",
        f"--output-dir={folder / 'out'}",
        "--executor_config_type=SIMULATED",
        f"--simulated_executor_config_rounds_file={folder / 'rounds.csv'}",
        *more,
    ]


def jobs_of(folder: Path, *more: str):
    options, rest = parse_options(flags_of(folder, *more))
    return options, read_jobs(options, rest)


def search(folder: Path, scheduler: str, *more: str):
    """Of one job, in this process: what was found, and the probes."""
    options, jobs = jobs_of(folder, *more)
    probes = []
    found = search_job(next(job for job in jobs if job.scheduler == scheduler), options, probes.append)
    return found, probes


def results(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "results.csv").open() as file:
        return list(csv.DictReader(file))


# ---- rates


@pytest.mark.parametrize("start", [0.1, 4, 300])
@pytest.mark.parametrize("granularity", [0.001, 0.025, 0.3])
def test_a_threshold_is_found_within_the_granularity(start, granularity):
    rates = []

    def holds(rate: float) -> bool:
        rates.append(rate)
        return rate <= 7.77

    found = find_capacity(holds, start=start, granularity=granularity, max_probes=40)
    assert found.is_close and found.low <= 7.77 < found.high <= found.low * (1 + granularity)
    assert len(rates) == len(set(rates)) == found.num_probes <= 20
    assert all(len(f"{rate!r}") <= 8 for rate in rates)


def test_both_ends_and_too_few_probes():
    never = find_capacity(lambda rate: False, start=4, granularity=0.025, max_probes=40)
    assert (never.low, never.high, never.is_close) == (None, 0.004, True)
    always = find_capacity(lambda rate: True, start=4, granularity=0.025, max_probes=40)
    assert (always.low, always.high, always.is_close) == (4000, None, True)
    cut = find_capacity(lambda rate: rate < 5, start=4, granularity=0.025, max_probes=3)
    assert not cut.is_close and cut.num_probes == 3 and cut.low < 5 <= cut.high


@given(st.integers(0, 2**64 - 1), st.floats(0.01, 1000), st.sampled_from([0.01, 0.025, 0.1]))
def test_whatever_holds_it_ends_between_a_rate_that_does_and_one_that_does_not(bits, start, granularity):
    verdicts = {}

    def holds(rate: float) -> bool:
        verdicts[rate] = bool(bits >> len(verdicts) & 1)
        return verdicts[rate]

    found = find_capacity(holds, start=start, granularity=granularity, max_probes=64)
    assert found.is_close
    assert found.low is None or verdicts[found.low]
    assert found.high is None or not verdicts[found.high]
    if found.low and found.high:
        assert found.low < found.high <= found.low * (1 + granularity)


# ---- quantiles


@given(st.lists(st.floats(0, 1e6), max_size=30), st.integers(0, 5), st.floats(0, 1))
def test_quantiles_with_infinite_values(values, num_unknown, quantile):
    distinct, counts = np.unique(np.array(values), return_counts=True)
    got = quantile_of(distinct, counts, num_unknown, quantile)
    everything = sorted(values) + [math.inf] * num_unknown
    if not everything:
        assert got is None
        return
    position = (len(everything) - 1) * quantile
    if everything[math.ceil(position)] == math.inf:
        assert got == math.inf
    else:
        finite = [value for value in everything if value < math.inf]
        assert got == pytest.approx(np.interp(position, range(len(finite)), finite))


def test_what_a_request_that_was_cut_off_says():
    """At 10 s: three have finished, and three wait for 9, 9 and 1 s, the second of them with its first token."""
    requests = {
        "status": np.array(["finished"] * 3 + ["unfinished", "unfinished", "ignored"], dtype=object),
        "arrival_time": np.array([0.0, 0.0, 0.0, 1.0, 1.0, 2.0]),
        "request_num_decode_tokens": np.array([4.0, 4.0, 4.0, 0.0, 2.0, np.nan]),
        **dict.fromkeys(("request_scheduling_delay", "prefill_e2e_time", "request_e2e_time"), np.full(6, 0.5)),
    }
    latencies = Latencies.of(requests, (np.array([0.1, 0.2]), np.array([2.0, 1.0])), np.array([9.0]), 10.0)

    def at(quantity: str, quantile: float, limit: float) -> float | None:
        return latencies.quantile(Slo(quantity, quantile, limit))

    for quantity in ("ttft", "scheduling_delay"):
        assert at(quantity, 0.66, 8) == 0.5 and at(quantity, 0.67, 8) == math.inf  # one of four is infinite
        assert at(quantity, 1, 9) == 0.5
        assert at(quantity, 0.5, math.inf) == 0.5 and at(quantity, 0.51, math.inf) == math.inf  # two of five
    assert at("e2e", 0.5, 8) == 0.5 and at("e2e", 0.51, 8) == math.inf  # two of five
    assert at("e2e", 0.4, math.inf) == 0.5 and at("e2e", 0.41, math.inf) == math.inf  # three of six
    assert at("tbt", 1, 0.1) == 0.2
    nobody = latencies._replace(finished={"e2e": np.empty(0)}, gaps=(np.empty(0), np.empty(0, dtype=np.int64)))
    assert nobody.quantile(Slo("tbt", 0.5, 1)) == math.inf


# ---- cases with a known answer


def d_d_1(limit: float, quantile: float) -> float:
    """Highest rate at which the quantile of the waits i * (SERVICE - 1 / rate), i = 0 .. LAST, is within the limit."""
    return 1 / (SERVICE - limit / (LAST * quantile))


NO_OTHERS = ("--scheduling-delay-slo-value=null", "--tbt-slo-value=null")


@pytest.mark.parametrize(
    ("scheduler", "flags", "expected"),
    [
        ("one_seat", ["--scheduling-delay-slo-value=2", "--scheduling-delay-slo-quantile=0.5"], d_d_1(2, 0.5)),
        ("one_seat", ["--scheduling-delay-slo-value=1", "--scheduling-delay-slo-quantile=0.9"], d_d_1(1, 0.9)),
        ("one_seat", [*NO_OTHERS, "--ttft-slo-value=1"], d_d_1(1 - FIRST, 0.99)),
        ("one_seat", [*NO_OTHERS, "--e2e-slo-value=3", "--e2e-slo-quantile=0.8"], d_d_1(3 - SERVICE, 0.8)),
        # A prompt beside a decode stretches a gap: the last may begin with the last round of the one before it.
        ("many_seats", ["--tbt-slo-value=0.1", "--tbt-slo-quantile=1"], LAST / (LAST * SERVICE - ROUND)),
    ],
    ids=["delay-p50", "delay-p90", "ttft-p99", "e2e-p80", "tbt-max"],
)
@pytest.mark.parametrize("granularity", [2.5, 0.3])
def test_known_capacity(files, scheduler, flags, expected, granularity):
    found, probes = search(files, scheduler, *flags, f"--min-search-granularity={granularity}")
    assert found.is_close and found.low <= expected < found.high <= found.low * (1 + granularity / 100)
    at_low = next(probe for probe in probes if probe.rate == found.low)
    waits = np.arange(NUM_REQUESTS) * max(0, SERVICE - 1 / found.low)
    if scheduler == "one_seat":
        quantile = float(flags[1].split("=")[1]) if "delay" in flags[1] and flags[1][-4:] != "null" else 0.5
        assert at_low.figures["scheduling_delay"] == pytest.approx(np.quantile(waits, quantile), abs=1e-6)


def test_the_workload_is_the_same_at_every_rate(files):
    _, probes = search(files, "one_seat", "--write_json_trace")
    sent = [json.loads((probe.run / "requests.json").read_text()) for probe in probes]
    for probe, requests in zip(probes, sent, strict=True):
        assert [r["num_prefill_tokens"] for r in requests] == [r["num_prefill_tokens"] for r in sent[0]]
        assert requests[LAST]["arrived_at"] == pytest.approx(LAST / probe.rate)


def test_requests_cut_off_by_the_time_limit_count(files):
    """Of the requests sent in 6 s the last, waiting for less than the limit, say nothing; the others must hold."""
    flags = (
        "--time-limit=0.1",
        "--scheduling-delay-slo-quantile=1",
        "--scheduling-delay-slo-value=1",
        "--tbt-slo-value=null",
    )
    found, probes = search(files, "one_seat", *flags)
    by_rate = {probe.rate: probe for probe in probes}
    assert by_rate[1].counts == {"finished": 6, "ignored": 0, "unfinished": 1, "not_sent": NUM_REQUESTS - 7}
    assert by_rate[1].figures["scheduling_delay"] == 0 and by_rate[1].figures["tbt"] == pytest.approx(ROUND)
    assert by_rate[8].figures["scheduling_delay"] == by_rate[8].figures["e2e"] == math.inf
    # The last whose fate is known arrives 1 s before the end and waits for 5 (rate SERVICE - 1).
    assert found.low == pytest.approx(1.2 / SERVICE, rel=0.1)
    again = search(files, "one_seat", *flags, "--e2e-slo-value=1")[1]
    assert again[0].note == "from an earlier search" and again[0].figures["e2e"] == pytest.approx(SERVICE)


# ---- the command


def test_the_command_reports_every_job_and_goes_on_after_a_failure(files, capsys):
    schedulers = [
        *content_of(files)["schedulers"],
        {"name": "dies", "scheduler": f"{__name__}.DyingScheduler", "batch_size": 4},
        {"name": "raises", "scheduler": f"{__name__}.BrokenScheduler", "batch_size": 4},
    ]
    models = [
        *content_of(files)["models"],
        {"name": "unknown", "identifier": "nobody/nothing", "scheduler_specs": ["one_seat"]},
    ]
    write_yaml(files, schedulers=schedulers, models=models)
    assert main(flags_of(files, "--num-workers=2")) == 1
    out = capsys.readouterr().out
    rows = {row["job"]: row for row in results(files)}
    schedulers = ("one_seat", "many_seats", "dies", "raises")
    assert list(rows) == [*(f"qwen_fixed_{name}_tp_1" for name in schedulers), "unknown_fixed_one_seat_tp_1"]
    row = rows["qwen_fixed_one_seat_tp_1"]
    low, high = float(row["max_qps_under_slo"]), float(row["min_qps_over_slo"])
    assert low <= d_d_1(2, 0.5) < high <= 1.025 * low and row["is_within_granularity"] == "True"
    assert (row["identifier"], row["device"], row["num_not_sent"]) == ("Qwen/Qwen3-8B", "rtx_4090", "0")
    assert float(row["tbt_p99"]) == pytest.approx(ROUND) and row["num_ignored"] == "0"
    assert f"{low:g} to {high:g}" in out and "qwen_fixed_dies_tp_1 failed: its process ended with status 7" in out
    assert "qwen_fixed_raises_tp_1 failed: ZeroDivisionError: no round" in out
    assert "unknown_fixed_one_seat_tp_1 failed: --model_config_model: " in out and "Traceback" not in out
    stored = json.loads((files / "out" / "results.json").read_text())
    assert [slo["quantity"] for slo in stored["slos"]] == ["scheduling_delay", "tbt"]
    assert len(stored["jobs"][0]["probes"]) == int(row["num_probes"])
    for probe in stored["jobs"][0]["probes"]:
        run = files / "out" / probe["run"]
        assert {"config.yaml", "requests.csv", "rounds.csv", "summary.json", "token_gaps.csv"} <= set(os.listdir(run))
        assert run.parent.name.startswith(f"{probe['rate']!r}-")
    assert (files / "out" / "capacity.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_unbounded_is_told(files, capsys):
    write_yaml(files, schedulers=content_of(files)["schedulers"][:1])
    assert main(flags_of(files, "--tbt-slo-value=0.01")) == 0
    out = capsys.readouterr().out
    assert "nothing holds, not even 0.001 requests/s: scheduling delay P50 0 ms; " in out
    assert main(flags_of(files, "--scheduling-delay-slo-value=1000")) == 0
    assert "so it is at least 1000 requests/s" in capsys.readouterr().out
    assert main(flags_of(files, "--max-iterations=2")) == 0
    assert "ended by --max-iterations 2" in capsys.readouterr().out


def test_a_result_that_the_time_limit_cut_says_so(files):
    flags = ("--time-limit=0.1", "--max-iterations=1")
    options, jobs = jobs_of(files, *flags)
    found, probes = search(files, "one_seat", *flags)
    told = f"1 requests/s 1 were cut off by --time-limit 0.1 (minutes), {NUM_REQUESTS - 7} not sent before it"
    assert any(line.endswith(told) for line in remarks([Outcome(jobs[0], probes, found)], options))


def test_jobs_whose_names_read_the_same_have_a_row_each(files):
    options, jobs = jobs_of(files)
    alike = [replace(jobs[0], model=model, trace=trace) for model, trace in (("a_b", "c"), ("a", "b_c"))]
    table = capacity_table([Outcome(job, [], Failure("why")) for job in alike], options.slos)
    assert table.count("failed") == 2


def test_a_full_disk_is_told_with_the_folder(files):
    command = [sys.executable, "-m", "sarathi.benchmark.capacity_search.main", *flags_of(files, "--num-workers=1")]
    script = f"ulimit -f 8; exec {shlex.join(command)}"  # KiB
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    told = f"failed: cannot write into {files / 'out' / 'runs'}/qwen_fixed_one_seat_tp_1-"
    assert told in ended.stderr and "(File too large)" in ended.stderr and "Errno" not in ended.stderr
    assert ended.returncode == 1 and f"{files / 'out' / 'results.csv'} is incomplete" in ended.stderr


def test_what_cannot_run_is_told_before_anything_is_written(files, capsys):
    models = [
        {"name": "34b", "identifier": "codellama/CodeLlama-34b-Instruct-hf"},
        {"name": "70b", "identifier": "meta-llama/Llama-2-70b-hf"},  # does not fit the card
    ]
    write_yaml(files, models=models)
    with pytest.raises(SystemExit) as caught:
        main(flags_of(files))
    err = capsys.readouterr().err
    assert caught.value.code == 2 and not (files / "out").exists()
    told = [line for line in err.splitlines() if not line.startswith("WARNING")]
    assert len(told) == 2, err  # of two jobs each
    assert told[0].startswith("error: --model_config_model: 'codellama/CodeLlama-34b-Instruct-hf' is neither a known")
    assert told[1].startswith("error: --model_config_model: model meta-llama/Llama-2-70b-hf does not fit on rtx_4090")
    write_yaml(files, models=models[:1])
    with pytest.raises(SystemExit) as caught:
        main([*flags_of(files)[:2], "--executor_config_type=LOCAL"])
    assert caught.value.code == 2 and not (files / "out").exists()


def test_all_cores_are_taken_where_the_system_cannot_say_which(files, monkeypatch):
    options, jobs = jobs_of(files)
    assert _num_workers(jobs, options) == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert _num_workers(jobs, options) == 7


def test_all_requests_ignored_is_a_failure(files, capsys):
    write_yaml(files, schedulers=content_of(files)["schedulers"][:1])
    assert main(flags_of(files, "--trace_request_length_generator_config_max_tokens=1024")) == 2
    assert "search.yml sets this" in capsys.readouterr().err
    trace = {**content_of(files)["traces"][0], "max_seq_len": 60, "max_tokens": 1000}
    write_yaml(files, schedulers=content_of(files)["schedulers"][:1], traces=[trace])
    assert main(flags_of(files)) == 1
    assert "failed: at 1 requests per second all 30 requests were ignored; request 0: " in capsys.readouterr().out


# ---- going on


def slow_search(folder: Path, num_requests: int, **changes: object) -> None:
    """Probes that take their time; with FINE there are many of them."""
    trace = {**content_of(folder)["traces"][0], "num_requests": num_requests}
    rows = f"{PROMPT},{OUTPUT}\n" * num_requests
    (folder / "lengths.csv").write_text("num_prefill_tokens,num_decode_tokens\n" + rows)
    write_yaml(folder, traces=[trace], **changes)


FINE = ("--min-search-granularity=0.01", "--max-iterations=1000")


def start(folder: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "sarathi.benchmark.capacity_search.main", *flags_of(folder, *more)]
    return subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_probes(process: subprocess.Popen, folder: Path, number: int) -> list[Path]:
    deadline = time.monotonic() + 120
    while len(found := sorted((folder / "out").glob("runs/*/*/probe.json"))) < number:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)
    return found


def processes_of_group(group: int) -> list[int]:
    """What lives, zombies left out that nobody reaps in a container."""
    alive = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state = path.read_text().rpartition(")")[2].split()
            if int(state[2]) == group and state[0] != "Z":
                alive.append(int(path.parent.name))
    return alive


def comparable(folder: Path) -> list[dict[str, str]]:
    return [{key: value for key, value in row.items() if key != "run"} for row in results(folder)]


def test_killed_and_started_again_it_goes_on(files):
    slow_search(files, 60, schedulers=content_of(files)["schedulers"][:1])
    process = start(files, "--num-workers=1", *FINE)
    wait_for_probes(process, files, 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (files / "out" / "results.csv").exists()
    finished = {path: path.stat().st_mtime_ns for path in (files / "out").glob("runs/*/*/probe.json")}
    broken = next(iter(finished))
    broken.write_text(broken.read_text()[:40])
    torn = broken.parent / "2000-01-01_00-00-00-000000"
    torn.mkdir()
    (torn / "requests.csv.part").write_text("request_id,arr")

    again = start(files, "--num-workers=1", *FINE)
    wait_for_probes(again, files, len(finished) + 1)
    for pid in processes_of_group(again.pid):
        if pid != again.pid:  # what the terminal sends to all is for the parent alone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
    err = again.communicate(timeout=120)[1]
    assert again.returncode == 0, err
    for path, mtime in finished.items():
        assert (path.stat().st_mtime_ns == mtime) == (path != broken), path
    assert err.count("from an earlier search") == len(finished) - 1
    assert "what an earlier search left cannot be used" in err and not torn.exists()
    gone_on = comparable(files)
    os.rename(files / "out", files / "first")
    assert main(flags_of(files, *FINE)) == 0
    assert comparable(files) == gone_on


def test_ctrl_c_is_one_line_and_ends_all_processes(files):
    slow_search(files, 1000)
    process = start(files, "--num-workers=2", *FINE)
    wait_for_probes(process, files, 1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    told = [line for line in err.splitlines() if not line.startswith("INFO")]
    assert process.returncode == INTERRUPTED and len(told) == 1, err
    assert told[0].startswith("interrupted; finished probes are kept in")
    deadline = time.monotonic() + 10
    while alive := processes_of_group(process.pid):
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def test_one_search_at_a_time(files, capsys):
    slow_search(files, 1000)
    process = start(files, "--num-workers=1", *FINE)
    try:
        wait_for_probes(process, files, 1)
        assert main(flags_of(files)) == 2
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert "error: --output-dir: another search is at work in" in capsys.readouterr().err


def notes(folder: Path, *flags: str) -> set[str]:
    return {probe.note for probe in search(folder, "one_seat", "--max-iterations=2", *flags)[1]}


def test_a_changed_setting_makes_new_probes_beside_the_others_and_a_changed_limit_does_not(files):
    assert notes(files) == {""}
    limits = ("--scheduling-delay-slo-value=1.5", "--tbt-slo-quantile=0.5", "--e2e-slo-value=9")
    assert notes(files, *limits) == {REUSED}
    other = ("--simulated_executor_config_device=a100_80gb",)
    assert notes(files, *other) == {""}
    assert notes(files) == notes(files, *other) == {REUSED}
    os.utime(files / "lengths.csv", (1, 1))
    assert notes(files) == {""}


def cut_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def lose_column(path: Path) -> None:
    path.write_text(path.read_text().replace("arrival_time", "arrival", 1))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("requests.csv", cut_last_line), ("token_gaps.csv", cut_last_line), ("requests.csv", lose_column),
     ("summary.json", Path.unlink)],
)  # fmt: skip
def test_a_damaged_run_is_not_believed(files, name, damage):
    _, probes = search(files, "one_seat", "--max-iterations=1")
    damage(probes[0].run / name)
    _, again = search(files, "one_seat", "--max-iterations=1")
    assert again[0].note.startswith("run again, as what an earlier search left cannot be used (")
    assert again[0].run != probes[0].run and again[0].figures == probes[0].figures


def test_a_changed_class_of_ones_own_makes_new_probes(files, monkeypatch, capsys, caplog):
    """In a process of its own each time, as an imported class does not change."""
    monkeypatch.syspath_prepend(str(files))
    module = files / "own_scheduler.py"
    module.write_text("from sarathi.core.variants import SCHEDULERS\n\n\nclass Own(SCHEDULERS['SPF']):\n    pass\n")
    schedulers = [{"name": "own", "scheduler": "own_scheduler.Own", "batch_size": 1}]
    write_yaml(files, schedulers=schedulers)

    def num_reused() -> int:
        caplog.clear()
        assert main(flags_of(files, "--max-iterations=2")) == 0
        return caplog.text.count(REUSED)

    assert num_reused() == 0
    assert num_reused() == 2
    module.write_text(module.read_text().replace("pass", "num_seats = 1"))
    assert num_reused() == 0


def test_identity_knows_the_code_and_only_files_that_are_input(files, monkeypatch):
    from sarathi.benchmark.capacity_search import identity as module

    monkeypatch.chdir(files)
    for name in ("sarathi", "predictor"):
        (files / name).mkdir()
        monkeypatch.setattr(f"{name}.__path__", [str(files / name)])
    (files / "sarathi" / "part.py").write_text("pass")
    config = jobs_of(files, "--model_config_revision=lengths.csv")[1][0].config

    def code(is_new_process: bool = True) -> str:
        if is_new_process:
            module._source_digest.cache_clear()
        return module.identity(config)["code"]

    inputs = {str(files / "lengths.csv"), str(files / "rounds.csv")}
    assert set(module.identity(config)["files"]) == inputs
    (files / "own.npz").write_bytes(b"")
    lprs = replace(config, scheduler_config=LprsSchedulerConfig(predictor_file="own.npz"))
    assert set(module.identity(lprs)["files"]) == {*inputs, "own.npz"}
    before = code()
    (files / "predictor" / "part.npz").write_bytes(b"1")
    assert code(is_new_process=False) == before != code()
    before = code()
    (files / "predictor" / "part.npz").write_bytes(b"2")
    assert code() != before
    module._source_digest.cache_clear()


# ---- what is read


def test_upstreams_form_is_read(files, tmp_path):
    content = content_of(files)
    content["schedulers"] = [
        {"name": "vllm", "scheduler": "vllm", "batch_size": 128},
        {"name": "sarathi_256", "scheduler": "sarathi", "chunk_size": 256, "batch_size": 64},
    ]
    content["traces"][0] |= {"max_seq_len": 8192, "start_qps": 4}
    del content["traces"][0]["interval_generator"]
    content["parallel_spec"].append({"name": "tp_4_pp_2", "tp_dimension": 4, "pp_dimension": 2})
    every = {"parallel_specs": [], "scheduler_specs": None, "traces": None}
    content["models"] = [
        {**every, "name": "7b", "identifier": "meta-llama/Llama-2-7b-hf", "parallel_specs": ["tp_1"]},
        {**every, "name": "8b", "identifier": "Qwen/Qwen3-8B", "scheduler_specs": ["sarathi_256"], "traces": ["fixed"]},
    ]
    write_yaml(files, **content)
    _, jobs = jobs_of(files)
    assert [(job.model, job.scheduler, job.parallel) for job in jobs] == [
        ("7b", "vllm", "tp_1"),
        ("7b", "sarathi_256", "tp_1"),
        ("8b", "sarathi_256", "tp_1"),
        ("8b", "sarathi_256", "tp_4_pp_2"),
    ]
    assert len({job.folder for job in jobs}) == 4
    settings = to_dict(probe_config(jobs[-1].config, 4.0, tmp_path))
    assert settings["parallel_config"] == {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    assert settings["scheduler_config"]["chunk_size"] == 256 and settings["scheduler_config"]["max_num_seqs"] == 64
    assert settings["time_limit"] == 1800 and settings["model_config"]["max_model_len"] == 8192
    generator = settings["request_generator_config"]
    assert generator["interval_generator_config"] == {"type": "POISSON", "seed": None, "qps": 4.0}
    assert generator["length_generator_config"]["max_tokens"] == 8192
    assert jobs[0].config.model_config.max_model_len == 4096  # Llama 2's context


def test_further_settings_of_entries_and_flags_reach_the_probes(files, tmp_path):
    scheduler = {"name": "a", "scheduler": "aging_lprs_apc", "batch_size": 9, "alpha": "auto", "target_ms": 80}
    trace = {"num_requests": 7, "start_qps": 2}
    conversations = {"request_generator": "sharegpt", "max_prompt_tokens": 99, "interval_generator": "gamma", "cv": 2}
    uniform = {"request_generator": "SYNTHETIC", "length_generator": "UNIFORM", "min_tokens": 50}
    traces = [{**trace, **conversations, "name": "s"}, {**trace, **uniform, "name": "u"}]
    write_yaml(files, schedulers=[scheduler], traces=traces)
    options, jobs = jobs_of(
        files,
        "--seed=5",
        "--aging_lprs_apc_scheduler_config_l_min=8",
        "--wandb-project=p",
        "--wandb-sweep-id=s",
        "--wandb-sweep-name=first try",
    )
    settings = to_dict(probe_config(jobs[0].config, 3.0, tmp_path))
    expected = {"type": "AGING_LPRS_APC", "max_num_seqs": 9, "alpha": "auto", "target_ms": 80.0, "l_min": 8}
    assert expected.items() <= settings["scheduler_config"].items()
    generator = settings["request_generator_config"]
    assert {"type": "SHAREGPT", "num_requests": 7, "max_prompt_tokens": 99}.items() <= generator.items()
    assert generator["interval_generator_config"] == {"type": "GAMMA", "seed": None, "qps": 3.0, "cv": 2.0}
    assert settings["seed"] == 5
    lengths = to_dict(jobs[1].config)["request_generator_config"]["length_generator_config"]
    assert lengths["type"] == "UNIFORM" and lengths["min_tokens"] == 50

    def wandb(rate: float):
        return for_wandb(probe_config(jobs[0].config, rate, tmp_path), jobs[0], rate, options).metrics_config

    told = wandb(3.0)
    assert (told.wandb_project, told.wandb_sweep_id, told.wandb_group) == ("p", "s", jobs[0].key)
    assert told.wandb_run_name == "qps_3.0" and told.wandb_tags == "first try"
    assert told.wandb_run_id and told.wandb_run_id == wandb(3.0).wandb_run_id != wandb(4.0).wandb_run_id


GONE = object()
SCHEDULER, TRACE = "schedulers, 'one_seat': ", "traces, 'fixed': "


@pytest.mark.parametrize(
    ("where", "change", "told"),
    [
        ("schedulers", {"chunk_siz": 1}, f"{SCHEDULER}chunk_siz: not a key of this entry; did you mean chunk_size?"),
        ("schedulers", {"batch_size": 0}, f"{SCHEDULER}batch_size: 0 is not allowed; an integer of at least 1"),
        ("schedulers", {"batch_size": GONE}, f"{SCHEDULER}batch_size: this key is needed"),
        ("schedulers", {"scheduler": "sarathy"}, f"{SCHEDULER}scheduler: 'sarathy' is not known; one of SARATHI, "),
        ("schedulers", {"scheduler": "vllm"}, f"{SCHEDULER}chunk_size: not a key of this entry"),
        ("schedulers", {"alpha": 1}, f"{SCHEDULER}alpha: not a key of this entry"),
        ("schedulers", {"name": "a\nb"}, "schedulers, 'a\\nb': name: 'a\\nb' is not allowed; text that a terminal and"),
        ("models", {"name": "\x1b[2J"}, "models, '\\x1b[2J': name: '\\x1b[2J' is not allowed; text that"),
        ("schedulers", {"name": "many_seats"}, "schedulers: the name 'many_seats' stands twice"),
        ("traces", {"trace_file": GONE}, f"{TRACE}trace_file: this key is needed, or request_generator"),
        ("traces", {"trace_file": "no.csv"}, f"{TRACE}trace_file: 'no.csv' is not a file"),
        ("traces", {"max_seq_len": GONE}, f"{TRACE}max_seq_len: this key is needed"),
        ("traces", {"start_qps": -1}, f"{TRACE}start_qps: -1"),
        ("traces", {"interval_generator": "TRACE"}, f"{TRACE}interval_generator: 'TRACE' is not known; one of STATIC"),
        ("traces", {"request_generator": "TRACE"}, f"{TRACE}request_generator: 'TRACE' is not known; one of SHAREGPT"),
        ("traces", {"qps": 3}, f"{TRACE}qps: not a key of this entry"),
        ("parallel_spec", {"tp_dimension": "two"}, "parallel_spec, 'tp_1': tp_dimension: 'two' is not allowed"),
        (
            "models",
            {"scheduler_specs": ["x"]},
            "models, 'qwen': scheduler_specs: 'x' is none of schedulers; one of one",
        ),
        ("models", GONE, "models: this key is needed; a list of at least one entry"),
        ("parallel_spec", [], "parallel_spec: [] is not allowed; a list"),
        ("traces", ["chat"], "traces: 'chat' is no mapping of keys"),
        ("trace", [], "trace is not known; did you mean traces?"),
    ],
)
def test_a_fault_of_the_file_is_one_line_with_file_and_key(files, where, change, told):
    content = content_of(files)
    if isinstance(change, dict):
        change = [{**content[where][0], **change}, *content[where][1:]]
        change[0] = {key: value for key, value in change[0].items() if value is not GONE}
    content[where] = change
    (files / "search.yml").write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not GONE}))
    with pytest.raises(FlagError) as caught:
        jobs_of(files)
    message = str(caught.value)
    assert message.startswith(f"--config-path: {told}") and message.endswith(f"(in {files / 'search.yml'})")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tbt-slo-quantile=1.5"], "--tbt-slo-quantile: 1.5 is not allowed; a number of at least 0 and at most 1"),
        (["--ttft-slo-value=-1"], "--ttft-slo-value: "),
        (["--max-iterations"], "--max-iterations: a value is needed"),
        (["--min-search-granularity", "0"], "--min-search-granularity: "),
        (["--time_limit=3"], "--time_limit: --time-limit, in minutes, bounds a probe"),
        (["--scheduling-delay-slo-value=null", "--tbt-slo-value=null"], "--scheduling-delay-slo-value: "),
        (["--wandb-sweep-id=x"], "--wandb-sweep-id: "),
        (["--num_replica=2"], "--num_replica: unknown flag; did you mean --num_replicas?"),
        (["--model_config_model=smollm2"], "--model_config_model: "),
        (["--simulated_executor_config_device=abacus"], "--simulated_executor_config_device: 'abacus' is not allowed"),
        (["--cache_config_block_size=0"], "--cache_config_block_size: "),
        (["--config-path=no.yml"], "--config-path: cannot read 'no.yml'"),
    ],
)
def test_a_fault_of_the_command_line_is_one_line_with_the_flag(files, flags, told, capsys):
    try:
        status = main(flags_of(files, *flags))
    except SystemExit as error:
        status = error.code
    err = capsys.readouterr().err
    assert status == 2 and err.startswith(f"error: {told}") and err.count("\n") == 1
    assert not (files / "out").exists()
