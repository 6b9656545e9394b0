"""Each flag of Sarathi-Serve's benchmark does here what it did there, or says why it does nothing."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sarathi.config import parse_args, to_yaml
from sarathi.core.variants import SCHEDULERS
from tests import flag_outcomes as o

SYNTHETIC = "--request_generator_config_type SYNTHETIC"


class Case(NamedTuple):
    value: str  # not its default
    check: o.Check
    given: str = SYNTHETIC  # what else is set in both


def of_scheduler(name: str) -> str:
    """All requests come at once, and a scheduler that reserves the whole context for each has room for many."""
    at_once = "--poisson_request_interval_generator_config_qps 5000 --model_config_max_model_len 1000"
    return f"{SYNTHETIC} --scheduler_config_type {name} {at_once}"


NO_HUB = "models are read from files here, never from a hub"
NO_MODEL = "the simulated device loads no model"

MODEL_AND_DEVICE = {
    "model_config_model": Case(
        "meta-llama/Llama-2-7b-hf",
        lambda before, after: (before.system.model.num_layers, after.system.model.num_layers) == (36, 32),
    ),
    "model_config_trust_remote_code": Case("false", o.told(NO_HUB)),
    "model_config_download_dir": Case("weights", o.told(NO_HUB)),
    "model_config_load_format": Case("dummy", o.told(NO_MODEL)),
    "model_config_dtype": Case(
        "float32",
        lambda before, after: before.run.summary["makespan"] < after.run.summary["makespan"],
        f"{SYNTHETIC} --cache_config_num_gpu_blocks 2000",
    ),
    "model_config_seed": Case("3", o.told(NO_MODEL)),
    "model_config_revision": Case("main", o.told(NO_HUB)),
    "model_config_max_model_len": Case(
        "200", lambda before, after: [it.run.summary["num_ignored"] for it in (before, after)] == [0, o.NUM_REQUESTS]
    ),
    "worker_config_gpu_memory_utilization": Case(
        "0.9", lambda before, after: before.system.num_gpu_blocks < after.system.num_gpu_blocks
    ),
    "worker_config_attention_backend": Case("NO_OP", o.told(NO_MODEL)),
    "cache_config_block_size": Case(
        "32", lambda before, after: before.system.num_gpu_blocks // 2 == after.system.num_gpu_blocks
    ),
    "cache_config_num_gpu_blocks": Case("300", lambda before, after: after.system.num_gpu_blocks == 300),
    "parallel_config_pipeline_parallel_size": Case(
        "2", lambda before, after: [it.system.executor.max_inflight_steps for it in (before, after)] == [1, 2]
    ),
    "parallel_config_tensor_parallel_size": Case(
        "2", lambda before, after: after.most("batch_execution_time") < 0.9 * before.most("batch_execution_time")
    ),
}

LONG = (
    f"{SYNTHETIC} --fixed_request_length_generator_config_prefill_tokens 2000 "
    "--synthetic_request_generator_config_num_requests 1"
)
LONG_DYNAMIC = (
    f"{LONG} --sarathi_scheduler_config_low_chunk_size 64 --sarathi_scheduler_config_high_chunk_size 500 "
    "--sarathi_scheduler_config_chunk_schedule_max_tokens 1500 --sarathi_scheduler_config_chunk_schedule_stages 4"
)
DYNAMIC = f"{LONG_DYNAMIC} --sarathi_scheduler_config_enable_dynamic_chunking_schedule"

SCHEDULING = {
    "scheduler_config_type": Case(
        "ORCA", lambda before, after: [type(it.system.scheduler) for it in (before, after)] == SCHEDULERS_OF_CASE
    ),
    "vllm_scheduler_config_max_num_seqs": Case("3", o.at_most("batch_size", 3), of_scheduler("VLLM")),
    "vllm_scheduler_config_max_batched_tokens": Case(
        "700", o.at_most("batch_num_prefill_tokens", 700), of_scheduler("VLLM")
    ),
    "simple_chunking_scheduler_config_max_num_seqs": Case(
        "3", o.at_most("batch_size", 3), of_scheduler("SIMPLE_CHUNKING")
    ),
    "simple_chunking_scheduler_config_chunk_size": Case(
        "100", o.at_most("batch_num_tokens", 100), of_scheduler("SIMPLE_CHUNKING")
    ),
    "orca_scheduler_config_max_num_seqs": Case("3", o.at_most("batch_size", 3), of_scheduler("ORCA")),
    "faster_transformer_scheduler_config_max_num_seqs": Case(
        "3", o.at_most("batch_size", 3), of_scheduler("FASTER_TRANSFORMER")
    ),
    "sarathi_scheduler_config_max_num_seqs": Case("3", o.at_most("batch_size", 3), of_scheduler("SARATHI")),
    "sarathi_scheduler_config_chunk_size": Case("100", o.at_most("batch_num_tokens", 100), of_scheduler("SARATHI")),
    "sarathi_scheduler_config_enable_dynamic_chunking_schedule": Case("true", o.shrinks_chunks, LONG_DYNAMIC),
    "sarathi_scheduler_config_low_chunk_size": Case("200", o.moves_chunks, DYNAMIC),
    "sarathi_scheduler_config_high_chunk_size": Case("900", o.moves_chunks, DYNAMIC),
    "sarathi_scheduler_config_chunk_schedule_max_tokens": Case("700", o.moves_chunks, DYNAMIC),
    "sarathi_scheduler_config_chunk_schedule_stages": Case("2", o.moves_chunks, DYNAMIC),
}
SCHEDULERS_OF_CASE = [SCHEDULERS["SARATHI"], SCHEDULERS["ORCA"]]

METRICS = {
    "metrics_config_write_metrics": Case(
        "false", lambda before, after: before.run.directory.is_dir() and after.run.directory is None
    ),
    "metrics_config_wandb_project": Case("p1", o.of_wandb("wandb_project")),
    **{
        f"metrics_config_{name}": Case("p1", o.of_wandb(name), f"{SYNTHETIC} --metrics_config_wandb_project p")
        for name in ("wandb_group", "wandb_run_name", "wandb_sweep_id", "wandb_run_id")
    },
    "metrics_config_enable_op_level_metrics": Case("true", o.adds_file("operators.csv")),
    "metrics_config_enable_cpu_op_level_metrics": Case("true", o.adds_file("cpu_operators.csv")),
    "metrics_config_enable_chrome_trace": Case("true", o.adds_file("chrome_trace.json")),
    "metrics_config_enable_request_outputs": Case("true", o.told("simulated rounds make no tokens")),
    "metrics_config_keep_individual_batch_metrics": Case("true", o.told("rounds.csv always holds every round")),
}

RUN = {
    "log_level": Case("error", o.sets_log_level),
    "output_dir": Case("elsewhere", lambda before, after: after.run.directory.parent.name == "elsewhere"),
    "seed": Case("43", o.changes("arrivals")),
    "write_json_trace": Case("false", lambda before, after: before.files - after.files == {"requests.json"}),
    "enable_profiling": Case("true", o.adds_file("profile.pstats")),
    "time_limit": Case(
        "0.05", lambda before, after: after.run.summary["num_finished"] < before.run.summary["num_finished"]
    ),
    "num_replicas": Case("2", lambda before, after: after.run.summary["num_replicas"] == 2),
    "replica_resource_mapping": Case('[[["10.0.0.1",0]]]', o.told("it places the workers of RAY")),
}

TRACE = "--request_generator_config_type TRACE --trace_request_generator_config_trace_file"
REPLAY = f"{TRACE} requests.csv"

GENERATORS = {
    "request_generator_config_type": Case("SYNTHETIC", o.lengths_are(300, 8), REPLAY),
    "synthetic_request_generator_config_seed": Case("7", o.changes("arrivals")),
    "synthetic_request_generator_config_num_requests": Case("5", lambda before, after: len(after.arrivals) == 5),
    "synthetic_request_generator_config_duration": Case(
        "0.5", lambda before, after: len(after.arrivals) > o.NUM_REQUESTS and after.arrivals[-1] < 0.5
    ),
    "trace_request_generator_config_seed": Case("7", o.told_of_seed("requests are those of the trace"), REPLAY),
    "trace_request_generator_config_trace_file": Case("other_requests.csv", o.lengths_are(77, 7), REPLAY),
    "trace_request_generator_config_date": Case("2023-08-21", o.lengths_are(20, 2), f"{TRACE} dated.csv"),
    "trace_request_generator_config_prefill_scale_factor": Case("2", o.scales_lengths(2, 1), REPLAY),
    "trace_request_generator_config_decode_scale_factor": Case("2", o.scales_lengths(1, 2), REPLAY),
    "trace_request_generator_config_time_scale_factor": Case("2", o.scales_arrivals(2), REPLAY),
    "trace_request_generator_config_max_tokens": Case("100", o.shorter_than(100), REPLAY),
}

LENGTHS_OF_TRACE = (
    f"{SYNTHETIC} --length_generator_config_type TRACE --trace_request_length_generator_config_trace_file lengths.csv"
)

LENGTHS = {
    "length_generator_config_type": Case("UNIFORM", o.changes("lengths")),
    "fixed_request_length_generator_config_seed": Case("7", o.told_of_seed("all lengths are the same")),
    "fixed_request_length_generator_config_prefill_tokens": Case("40", o.lengths_are(40, 8)),
    "fixed_request_length_generator_config_decode_tokens": Case("9", o.lengths_are(300, 9)),
    **{
        f"trace_request_length_generator_config_{name}": Case(value, check, LENGTHS_OF_TRACE)
        for name, value, check in (
            ("seed", "7", o.changes("lengths")),
            ("trace_file", "other_lengths.csv", o.lengths_are(77, 7)),
            ("prefill_scale_factor", "2", o.scales_lengths(2, 1)),
            ("decode_scale_factor", "2", o.scales_lengths(1, 2)),
            ("max_tokens", "120", o.shorter_than(120)),
        )
    },
    **{
        f"{kind}_request_length_generator_config_{name}": Case(
            value, check, f"{SYNTHETIC} --length_generator_config_type {kind}"
        )
        for kind in ("uniform", "zipf")
        for name, value, check in (
            ("seed", "7", o.changes("lengths")),
            ("min_tokens", "4000", lambda before, after: min(before.totals) < 4000 <= min(after.totals)),
            ("max_tokens", "1030", o.shorter_than(1030)),
            ("prefill_to_decode_ratio", "3", o.ratio_is_three),
        )
    },
    "zipf_request_length_generator_config_theta": Case(
        "3",
        lambda before, after: sum(after.totals) < sum(before.totals),
        f"{SYNTHETIC} --length_generator_config_type ZIPF",
    ),
    "zipf_request_length_generator_config_scramble": Case(
        "true", o.changes("lengths"), f"{SYNTHETIC} --length_generator_config_type ZIPF"
    ),
}

GAMMA = f"{SYNTHETIC} --interval_generator_config_type GAMMA"
ARRIVALS_OF_TRACE = (
    f"{SYNTHETIC} --interval_generator_config_type TRACE --synthetic_request_generator_config_num_requests null "
    "--trace_request_interval_generator_config_trace_file arrivals.csv"
)

INTERVALS = {
    "interval_generator_config_type": Case("STATIC", o.changes("arrivals")),
    "poisson_request_interval_generator_config_seed": Case("7", o.changes("arrivals")),
    "poisson_request_interval_generator_config_qps": Case("1000", o.faster),
    "gamma_request_interval_generator_config_seed": Case("7", o.changes("arrivals"), GAMMA),
    "gamma_request_interval_generator_config_qps": Case("1000", o.faster, GAMMA),
    "gamma_request_interval_generator_config_cv": Case(
        "5", o.burstier, f"{GAMMA} --synthetic_request_generator_config_num_requests 200"
    ),
    "static_request_interval_generator_config_seed": Case(
        "7", o.told_of_seed("all intervals are the same"), f"{SYNTHETIC} --interval_generator_config_type STATIC"
    ),
    **{
        f"trace_request_interval_generator_config_{name}": Case(value, check, ARRIVALS_OF_TRACE)
        for name, value, check in (
            ("seed", "7", o.told_of_seed("arrivals are those of the trace")),
            ("trace_file", "other_arrivals.csv", lambda before, after: len(before.arrivals) == 3 > len(after.arrivals)),
            ("start_time", "1970-01-04T12:30:00", lambda before, after: after.arrivals == [0.0, 6600.0]),
            ("end_time", "1970-01-04T14:00:00", lambda before, after: after.arrivals == before.arrivals[:2]),
            ("time_scale_factor", "2", o.scales_arrivals(2)),
        )
    },
}

CASES = MODEL_AND_DEVICE | SCHEDULING | METRICS | RUN | GENERATORS | LENGTHS | INTERVALS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Traces to read, a place to write, and the level of logging as it was afterwards."""
    for name, text in o.FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        yield


def without(flag: str, flags: str) -> str:
    """`flags` without this one and its value."""
    words = flags.split()
    return " ".join(w for i, w in enumerate(words) if w != f"--{flag}" and (not i or words[i - 1] != f"--{flag}"))


@pytest.mark.parametrize("flag", CASES)
def test_flag(flag: str, tmp_path: Path) -> None:
    case = CASES[flag]
    given = f"{o.BASE} {case.given}"
    before, after = o.Outcome(given), o.Outcome(f"{without(flag, given)} --{flag} {case.value}")
    assert before.config != after.config
    (tmp_path / "config.yaml").write_text(to_yaml(after.config))
    assert parse_args(["--config", "config.yaml"]) == after.config
    assert case.check(before, after)


@pytest.mark.parametrize(
    "flags",
    [
        "--num_replicas 2 --replica_resource_mapping [[[null,0]]]",
        "--parallel_config_tensor_parallel_size 2 --replica_resource_mapping [[[null,0]]]",
        "--replica_resource_mapping [[null,0]]",
        '--replica_resource_mapping [[["",0]]]',
        '--replica_resource_mapping [[["a",-1]]]',
        '--replica_resource_mapping [[["a","0"]]]',
    ],
)
def test_places_that_do_not_fit_the_replicas(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(flags.split())
    error = capsys.readouterr().err
    assert error.startswith("error: --replica_resource_mapping: ") and "one entry for each replica" in error


def test_every_flag_has_a_case(shared: Path) -> None:
    with (shared / "upstream_flags.csv").open() as file:
        flags = {row["flag"].removeprefix("--") for row in csv.DictReader(file)}
    assert len(flags) == 89 and flags == CASES.keys()
