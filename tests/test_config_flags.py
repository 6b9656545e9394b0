"""The command line: every flag of Sarathi-Serve's benchmark parses, and a bad one is one clear line."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import pytest

from sarathi import config as c

UPSTREAM_FLAGS = """
log_level output_dir model_config_model model_config_trust_remote_code model_config_download_dir
model_config_load_format model_config_dtype model_config_seed model_config_revision model_config_max_model_len
worker_config_gpu_memory_utilization worker_config_attention_backend cache_config_block_size
cache_config_num_gpu_blocks parallel_config_pipeline_parallel_size parallel_config_tensor_parallel_size
scheduler_config_type vllm_scheduler_config_max_num_seqs vllm_scheduler_config_max_batched_tokens
simple_chunking_scheduler_config_max_num_seqs simple_chunking_scheduler_config_chunk_size
orca_scheduler_config_max_num_seqs faster_transformer_scheduler_config_max_num_seqs
sarathi_scheduler_config_max_num_seqs sarathi_scheduler_config_chunk_size
sarathi_scheduler_config_enable_dynamic_chunking_schedule sarathi_scheduler_config_low_chunk_size
sarathi_scheduler_config_high_chunk_size sarathi_scheduler_config_chunk_schedule_max_tokens
sarathi_scheduler_config_chunk_schedule_stages metrics_config_write_metrics metrics_config_wandb_project
metrics_config_wandb_group metrics_config_wandb_run_name metrics_config_wandb_sweep_id metrics_config_wandb_run_id
metrics_config_enable_op_level_metrics metrics_config_enable_cpu_op_level_metrics metrics_config_enable_chrome_trace
metrics_config_enable_request_outputs metrics_config_keep_individual_batch_metrics seed write_json_trace
enable_profiling time_limit num_replicas replica_resource_mapping request_generator_config_type
synthetic_request_generator_config_seed length_generator_config_type trace_request_length_generator_config_seed
trace_request_length_generator_config_trace_file trace_request_length_generator_config_prefill_scale_factor
trace_request_length_generator_config_decode_scale_factor trace_request_length_generator_config_max_tokens
zipf_request_length_generator_config_seed zipf_request_length_generator_config_theta
zipf_request_length_generator_config_scramble zipf_request_length_generator_config_min_tokens
zipf_request_length_generator_config_max_tokens zipf_request_length_generator_config_prefill_to_decode_ratio
uniform_request_length_generator_config_seed uniform_request_length_generator_config_min_tokens
uniform_request_length_generator_config_max_tokens uniform_request_length_generator_config_prefill_to_decode_ratio
fixed_request_length_generator_config_seed fixed_request_length_generator_config_prefill_tokens
fixed_request_length_generator_config_decode_tokens interval_generator_config_type
trace_request_interval_generator_config_seed trace_request_interval_generator_config_trace_file
trace_request_interval_generator_config_start_time trace_request_interval_generator_config_end_time
trace_request_interval_generator_config_time_scale_factor poisson_request_interval_generator_config_seed
poisson_request_interval_generator_config_qps gamma_request_interval_generator_config_seed
gamma_request_interval_generator_config_qps gamma_request_interval_generator_config_cv
static_request_interval_generator_config_seed synthetic_request_generator_config_num_requests
synthetic_request_generator_config_duration trace_request_generator_config_seed
trace_request_generator_config_trace_file trace_request_generator_config_date
trace_request_generator_config_prefill_scale_factor trace_request_generator_config_decode_scale_factor
trace_request_generator_config_time_scale_factor trace_request_generator_config_max_tokens
""".split()  # noqa: SIM905
UPSTREAM_CSV = Path(__file__).parents[2] / "shared" / "upstream_flags.csv"


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        c.parse_args(argv)
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip()


def test_no_flags_is_a_small_sharegpt_replay_on_the_simulated_device() -> None:
    config = c.parse_args([])
    assert config == c.BenchmarkConfig()
    assert config.model_config.model == "Qwen/Qwen3-8B"
    assert config.scheduler_config == c.SarathiSchedulerConfig(chunk_size=512, max_num_seqs=128)
    assert config.executor_config == c.SimulatedExecutorConfig(device="rtx_4090")
    interval = c.StaticRequestIntervalGeneratorConfig(interval=0.1)
    assert config.request_generator_config == c.ShareGptRequestGeneratorConfig(
        num_requests=100, interval_generator_config=interval
    )


def accepts(flag: str, text: str) -> bool:
    try:
        c.config_from_args([f"--{flag}", text], c.BenchmarkConfig, "test")
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("flag", UPSTREAM_FLAGS)
def test_each_upstream_flag_parses(flag: str) -> None:
    samples = (
        "8",
        "1",
        "0.5",
        "false",
        "auto",
        "FLASHINFER",
        "info",
        '[[["node", 0]]]',
        "SARATHI",
        "SYNTHETIC",
        "FIXED",
        "POISSON",
    )
    assert any(accepts(flag, text) for text in samples)
    assert not accepts(f"{flag}_", "1")


def test_list_of_upstream_flags_is_complete() -> None:
    assert len(set(UPSTREAM_FLAGS)) == 89
    if not UPSTREAM_CSV.exists():
        pytest.skip("the table of upstream's flags is not at hand")
    with UPSTREAM_CSV.open() as file:
        rows = list(csv.DictReader(file))
    assert [f"--{flag}" for flag in UPSTREAM_FLAGS] == [row["flag"] for row in rows]
    for row in rows:
        if row["default"]:
            assert c.config_from_args([row["flag"], row["default"]], c.BenchmarkConfig, "test")


def test_an_upstream_script(tmp_path: Path) -> None:
    trace = tmp_path / "lengths.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n10,5\n")
    config = c.parse_args(
        f"""--scheduler_config_type SARATHI --sarathi_scheduler_config_max_num_seqs 64
        --sarathi_scheduler_config_chunk_size 1536 --request_generator_config_type SYNTHETIC
        --length_generator_config_type TRACE --interval_generator_config_type POISSON
        --poisson_request_interval_generator_config_qps 4
        --trace_request_length_generator_config_trace_file {trace}
        --trace_request_length_generator_config_max_tokens 8192 --synthetic_request_generator_config_num_requests 2048
        --model_config_model meta-llama/Llama-2-7b-hf --parallel_config_tensor_parallel_size 2 --output_dir DIR
        --time_limit 1800 --metrics_config_keep_individual_batch_metrics""".split()
    )
    assert config == c.BenchmarkConfig(
        scheduler_config=c.SarathiSchedulerConfig(max_num_seqs=64, chunk_size=1536),
        request_generator_config=c.SyntheticRequestGeneratorConfig(
            num_requests=2048,
            length_generator_config=c.TraceRequestLengthGeneratorConfig(trace_file=str(trace), max_tokens=8192),
            interval_generator_config=c.PoissonRequestIntervalGeneratorConfig(qps=4),
        ),
        model_config=c.ModelConfig(model="meta-llama/Llama-2-7b-hf"),
        parallel_config=c.ParallelConfig(tensor_parallel_size=2),
        output_dir="DIR",
        time_limit=1800,
        metrics_config=c.MetricsConfig(keep_individual_batch_metrics=True),
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--write_json_trace", True),
        ("--no-write_json_trace", False),
        ("--write_json_trace false", False),
        ("--write_json_trace=False", False),
        ("--write_json_trace true", True),
        ("--write_json_trace --no-write_json_trace", False),
        ("--no-write_json_trace --seed 1 --write_json_trace", True),
    ],
)
def test_switches(argv: str, expected: bool) -> None:
    assert c.parse_args(argv.split()).write_json_trace is expected


def test_values_of_each_kind() -> None:
    config = c.parse_args(
        [
            *("--scheduler_config_type", "aging"),
            *("--aging_scheduler_config_alpha", "AUTO"),
            *("--aging_scheduler_config_beta", "-1e-3"),
            *("--cache_config_num_gpu_blocks", "null"),
            *("--time_limit", "None"),
            *("--replica_resource_mapping", '[[["node", 0]]]'),
        ]
    )
    assert config.scheduler_config == c.AgingSchedulerConfig(alpha="auto", beta=-0.001)
    assert config.cache_config.num_gpu_blocks is None
    assert config.time_limit is None
    assert config.replica_resource_mapping == [[["node", 0]]]


@pytest.mark.parametrize("name", sorted(c.SCHEDULER_CONFIGS))
def test_each_scheduler_by_name(name: str) -> None:
    config = c.parse_args(
        ["--scheduler_config_type", name, f"--{name.lower()}_scheduler_config_max_num_seqs", "7"]
    ).scheduler_config
    assert type(config) is c.SCHEDULER_CONFIGS[name]
    assert config.max_num_seqs == 7


def test_own_scheduler_by_import_path() -> None:
    config = c.parse_args(
        [
            *("--scheduler_config_type", "my_package.policies.MyScheduler"),
            *("--custom_scheduler_config_chunk_size", "64"),
            *("--custom_scheduler_config_params", '{"threshold": 0.5}'),
        ]
    ).scheduler_config
    assert config == c.CustomSchedulerConfig(
        class_path="my_package.policies.MyScheduler", chunk_size=64, params={"threshold": 0.5}
    )


S = "--sarathi_scheduler_config_"
P = "--request_generator_config_type SYNTHETIC --poisson_request_interval_generator_config_"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (f"{S}chunk_size 0", f"{S}chunk_size: 0 is not allowed; an integer of at least 1"),
        (f"{S}chunk_size abc", f"{S}chunk_size: 'abc' is not allowed; an integer of at least 1"),
        (f"{S}chunk_size 1.5", f"{S}chunk_size: '1.5' is not allowed; an integer of at least 1"),
        (f"{S}chunk_size null", f"{S}chunk_size: 'null' is not allowed; an integer of at least 1"),
        (f"{S}chunk_size", f"{S}chunk_size: a value is needed"),
        (f"{S}chunk_size -5", f"{S}chunk_size: -5 is not allowed; an integer of at least 1"),
        (f"{S}chunk_sise 5", f"{S}chunk_sise: unknown flag; did you mean {S}chunk_size?"),
        (f"{S}chunk_size 5 6", "'6' belongs to no flag"),
        (f"{S}low_chunk_size 9 {S}high_chunk_size 8", f"{S}low_chunk_size: 9 is not allowed; at most high_chunk_size"),
        (f"{S}enable_dynamic_chunking_schedule", f"{S}low_chunk_size: an integer of at least 1, for enable_dynamic_"),
        ("--aging_scheduler_config_alpha 0", "--aging_scheduler_config_alpha: 0.0 is not allowed; a number above 0"),
        (f"{P}qps -1", "--poisson_request_interval_generator_config_qps: -1.0 is not allowed; a number of at"),
        (f"{P}qps nan", "--poisson_request_interval_generator_config_qps: nan is not allowed; a number of at"),
        (f"{P}qps inf", "--poisson_request_interval_generator_config_qps: inf is not allowed; a number of at"),
        (f"{P}qps -inf", "--poisson_request_interval_generator_config_qps: -inf is not allowed; a number of at"),
        ("--aging_scheduler_config_beta 0", "--aging_scheduler_config_beta: 0.0 is not allowed; a number below 0"),
        ("--worker_config_gpu_memory_utilization 0", "--worker_config_gpu_memory_utilization: 0.0 is not allowed; "),
        ("--worker_config_gpu_memory_utilization 1.5", "--worker_config_gpu_memory_utilization: 1.5 is not allowed; "),
        ("--cache_config_block_size 0", "--cache_config_block_size: 0 is not allowed; an integer of at least 1"),
        ("--cache_config_num_gpu_blocks 0", "--cache_config_num_gpu_blocks: 0 is not allowed; an integer of at least"),
        ("--simulated_executor_config_device tpu", "--simulated_executor_config_device: 'tpu' is not allowed; one of"),
        (
            "--simulated_executor_config_engine_profile fat",
            "--simulated_executor_config_engine_profile: 'fat' is not allowed; one of lean, sarathi_2024",
        ),
        ("--scheduler_config_type FIFO", "--scheduler_config_type: 'FIFO' is not known; one of SARATHI, AGING, SPF, "),
        ("--scheduler_config_type my-module.X", "--custom_scheduler_config_class_path: 'my-module.X' is not allowed"),
        (
            "--executor_config_type CLOUD",
            "--executor_config_type: 'CLOUD' is not known; one of AUTO, SIMULATED, LOCAL, RAY",
        ),
        (
            "--interval_generator_config_type TRACE",
            "--trace_request_interval_generator_config_trace_file: a CSV file with a column arrival_time (dates and ",
        ),
        ("--routing_config_type NEAREST", "--routing_config_type: 'NEAREST' is not known; one of ROUND_ROBIN, LEAST"),
        ("--num_replicas 0", "--num_replicas: 0 is not allowed; an integer of at least 1"),
        (
            "--request_generator_config_type TRACE --trace_request_generator_config_trace_file no/such.csv",
            "--trace_request_generator_config_trace_file: 'no/such.csv' is not a file",
        ),
        (
            "--request_generator_config_type TRACE --trace_request_generator_config_trace_file setup.py "
            "--trace_request_generator_config_date 21.08.2023",
            "--trace_request_generator_config_date: '21.08.2023' is not allowed; a date like 2023-08-21",
        ),
        (
            "--request_generator_config_type TRACE",
            "--trace_request_generator_config_trace_file: a CSV file with columns arrived_at (seconds), num_prefill_",
        ),
        (
            "--request_generator_config_type SYNTHETIC --length_generator_config_type TRACE",
            "--trace_request_length_generator_config_trace_file: a CSV file with columns num_prefill_tokens, num_dec",
        ),
        ("--write_json_trace maybe", "--write_json_trace: 'maybe' is not allowed; true or false"),
        ("--replica_resource_mapping [1", "--replica_resource_mapping: '[1' is not allowed; a list (JSON) or null"),
        ("--replica_resource_mapping " + "[" * 100_000, "--replica_resource_mapping: '[[["),
        ("--seed -1", "--seed: -1 is not allowed; an integer of at least 0"),
        ("--config no/such.yaml", "--config: cannot read 'no/such.yaml': No such file or directory"),
    ],
)
def test_bad_values_are_one_line_that_names_the_flag(
    capsys: pytest.CaptureFixture[str], argv: str, message: str
) -> None:
    assert error_of(capsys, *argv.split()).startswith(f"error: {message}")


def test_settings_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        flags = """--orca_scheduler_config_max_num_seqs 5 --length_generator_config_type FIXED
            --poisson_request_interval_generator_config_qps 3 --metrics_config_wandb_group mine
            --metrics_config_keep_individual_batch_metrics --model_config_seed 3 --model_config_load_format auto"""
        config = c.parse_args(flags.split())
    assert [record.getMessage() for record in caplog.records] == [
        "no effect with --scheduler_config_type SARATHI: --orca_scheduler_config_max_num_seqs",
        "no effect with --request_generator_config_type SHAREGPT: --length_generator_config_type",
        "no effect with --interval_generator_config_type STATIC: --poisson_request_interval_generator_config_qps",
        "--model_config_seed has no effect: the simulated device loads no model",
        "--metrics_config_wandb_group has no effect without --metrics_config_wandb_project",
        "--metrics_config_keep_individual_batch_metrics has no effect: rounds.csv always holds every round",
    ]
    assert config.metrics_config.wandb_group == "mine"


def test_what_has_an_effect_depends_on_the_executor(caplog: pytest.LogCaptureFixture) -> None:
    """A local engine loads a model; a setting of a hub does nothing anywhere."""
    flags = "--model_config_load_format dummy --worker_config_attention_backend SDPA --model_config_revision main"
    for executor, expected in (
        ("SIMULATED", {"model_config_load_format", "worker_config_attention_backend", "model_config_revision"}),
        ("LOCAL", {"model_config_revision"}),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            c.parse_args([*flags.split(), "--executor_config_type", executor])
        assert {record.getMessage().split()[0].removeprefix("--") for record in caplog.records} == expected


@pytest.mark.parametrize(("has_cuda", "expected"), [(True, c.LocalExecutorConfig), (False, c.SimulatedExecutorConfig)])
@pytest.mark.parametrize("flags", [[], ["--executor_config_type", "auto"]], ids=["default", "auto"])
def test_auto_runs_a_model_where_there_is_a_cuda_device(
    monkeypatch: pytest.MonkeyPatch, has_cuda: bool, expected: type, flags: list[str]
) -> None:
    monkeypatch.setattr("sarathi.worker.cuda.has_cuda_device", lambda: has_cuda)
    config = c.parse_args(flags)
    assert type(config.executor_config) is expected is type(c.BenchmarkConfig().executor_config)
    assert c.to_dict(config)["executor_config"]["type"] in ("LOCAL", "SIMULATED")
    assert type(c.SystemConfig().executor_config) is c.LocalExecutorConfig


def test_a_chosen_executor_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sarathi.worker.cuda.has_cuda_device", lambda: pytest.fail("looked for"))
    for name, expected in (("LOCAL", c.LocalExecutorConfig), ("SIMULATED", c.SimulatedExecutorConfig)):
        assert type(c.parse_args(["--executor_config_type", name]).executor_config) is expected


def test_help_lists_every_setting_once_with_default_and_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        c.parse_args(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    lines = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert len(lines) == len(set(lines))
    assert {f"--{flag}" for flag in UPSTREAM_FLAGS} <= set(lines)
    assert "\nsarathi_scheduler_config:\n  with --scheduler_config_type SARATHI\n" in text
    assert "Token budget of a round, decodes included (tokens; default 512)" in text
    assert "(default auto; no effect with SIMULATED: the simulated device loads no model)" in text
    assert "  --metrics_config_wandb_project STR\n" in text
    assert "(default false; no effect: rounds.csv always holds every round)" in text


def parse_each(argv: list[str], **kwargs: object) -> list[c.BenchmarkConfig]:
    names = ["SARATHI", "AGING"]
    settings = {"prog": "the program", "about": "What it does.", "defaults": {"cache_config_block_size": 8}, **kwargs}
    return c.parse_args_for_each(argv, "scheduler_config_type", names, **settings)  # pyright: ignore[reportArgumentType]


def test_defaults_of_a_program_lie_under_the_file_and_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("cache_config: {block_size: 32}")
    assert [config.cache_config.block_size for config in parse_each([])] == [8, 8]
    assert parse_each(["--config", str(path)])[0].cache_config.block_size == 32
    flag = ["--cache_config_block_size", "64"]
    assert parse_each(["--config", str(path), *flag])[0].cache_config.block_size == 64
    assert parse_each(flag)[0].cache_config.block_size == 64


def test_a_default_type_says_whose_settings_a_file_names(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("request_generator_config: {num_requests: 3}")
    configs = parse_each(["--config", str(path)], defaults={"request_generator_config_type": "SYNTHETIC"})
    assert configs[0].request_generator_config == c.SyntheticRequestGeneratorConfig(num_requests=3)


def test_each_name_of_a_choice_or_the_one_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("scheduler_config: {type: aging, chunk_size: 64}")
    assert [type(config.scheduler_config) for config in parse_each(["--aging_scheduler_config_chunk_size", "9"])] == [
        c.SarathiSchedulerConfig,
        c.AgingSchedulerConfig,
    ]
    assert [config.scheduler_config for config in parse_each(["--scheduler_config_type", "spf"])] == [
        c.SpfSchedulerConfig()
    ]
    assert [config.scheduler_config for config in parse_each(["--config", str(path)])] == [
        c.AgingSchedulerConfig(chunk_size=64)
    ]


def test_flags_of_several_schedulers_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    flags = """--sarathi_scheduler_config_chunk_size 64 --aging_scheduler_config_chunk_size 64
        --orca_scheduler_config_max_num_seqs 3 --length_generator_config_type FIXED
        --metrics_config_keep_individual_batch_metrics"""
    with caplog.at_level(logging.WARNING):
        parse_each(flags.split(), defaults={"vllm_scheduler_config_max_num_seqs": 3})
    assert [record.getMessage() for record in caplog.records] == [
        "no effect with --scheduler_config_type SARATHI, AGING: --orca_scheduler_config_max_num_seqs",
        "no effect with --request_generator_config_type SHAREGPT: --length_generator_config_type",
        "--metrics_config_keep_individual_batch_metrics has no effect: rounds.csv always holds every round",
    ]


def test_help_of_a_program_shows_its_name_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_each(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: the program [--config") and "\nWhat it does.\n" in text
    assert "Tokens in a KV block (tokens; default 8)" in text
    assert "my_module.MyScheduler (default each in turn)" in text


def test_a_fault_in_any_of_several_configs_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_each(["--aging_scheduler_config_beta", "0"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: --aging_scheduler_config_beta: 0.0 is not allowed")
