"""YAML in and out: nested and flat keys, flags over the file, and a written config that reads back equal."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sarathi import config as c
from sarathi.config.setting import Choice, Setting


def parse(tmp_path: Path, text: str, *argv: str) -> c.BenchmarkConfig:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return c.parse_args(["--config", str(path), *argv])


MAX_INTEGER = 10**9
AGING_256 = c.BenchmarkConfig(scheduler_config=c.AgingSchedulerConfig(chunk_size=256))


@pytest.mark.parametrize(
    "text",
    [
        "scheduler_config: {type: AGING, chunk_size: 256}",
        "scheduler_config_type: AGING\naging_scheduler_config_chunk_size: 256",
        "scheduler_config: {type: aging}\naging_scheduler_config_chunk_size: 256",
        "scheduler_config_type: AGING\nscheduler_config: {chunk_size: 256}",
    ],
)
def test_nested_and_flat_keys_say_the_same(tmp_path: Path, text: str) -> None:
    assert parse(tmp_path, text) == AGING_256


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    text = "seed: 1\nscheduler_config: {type: AGING, chunk_size: 128}"
    config = parse(tmp_path, text, "--aging_scheduler_config_chunk_size", "256", "--seed", "42")
    assert config == AGING_256
    assert parse(tmp_path, "scheduler_config: {chunk_size: 256}", "--scheduler_config_type", "AGING") == AGING_256
    assert parse(tmp_path, text, "--scheduler_config_type", "SPF").scheduler_config == c.SpfSchedulerConfig()


def test_values_are_typed_by_the_setting(tmp_path: Path) -> None:
    config = parse(
        tmp_path,
        """
        scheduler_config: {type: my_module.MyScheduler, params: {date: 2024-01-01, flag: on}}
        executor_config: {jitter: 1e-3}
        request_generator_config:
          type: SHAREGPT
          num_requests: null
          interval_generator_config: {type: POISSON, qps: 4}
        """,
    )
    assert config.scheduler_config == c.CustomSchedulerConfig(
        class_path="my_module.MyScheduler", params={"date": "2024-01-01", "flag": True}
    )
    assert config.executor_config == c.SimulatedExecutorConfig(jitter=0.001)
    assert config.request_generator_config == c.ShareGptRequestGeneratorConfig(
        num_requests=None, interval_generator_config=c.PoissonRequestIntervalGeneratorConfig(qps=4)
    )


def test_times_and_ratios_stay_text(tmp_path: Path) -> None:
    assert parse(tmp_path, "output_dir: 1:30").output_dir == "1:30"
    assert parse(tmp_path, "output_dir: 1:30.5").output_dir == "1:30.5"
    assert parse(tmp_path, "seed: 0x10").seed == 16


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert parse(tmp_path, "# nothing\n") == c.BenchmarkConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler_config: {chunk_size: 0}", "--sarathi_scheduler_config_chunk_size: 0 is not allowed; an integer of"),
        ("scheduler_config: {chunk_size: abc}", "--sarathi_scheduler_config_chunk_size: 'abc' is not allowed; an int"),
        ("scheduler_config: {chunk_size: [1]}", "--sarathi_scheduler_config_chunk_size: [1] is not allowed; an int"),
        (
            "scheduler_config: {chunk_sizes: 1}",
            "--config: scheduler_config.chunk_sizes is not known; did you mean chun",
        ),
        ("scheduler_config: {type: FIFO}", "--scheduler_config_type: 'FIFO' is not known; one of SARATHI, AGING"),
        ("scheduler_config: AGING", "--config: scheduler_config is 'AGING'; a mapping of its settings is needed"),
        ("sarathi_scheduler_config_chunksize: 1", "--config: sarathi_scheduler_config_chunksize is not known; did you"),
        ("modle_config: {}", "--config: modle_config is not known; did you mean model_config?"),
        ("12: 3", "--config: 12 is not known"),
        ("seed: 1\nseed: 2", "--config: 'FILE' is not valid YAML, line 2, column 1: seed stands twice"),
        ("scheduler_config: {chunk_size: 8}\nsarathi_scheduler_config_chunk_size: 9", "--sarathi_scheduler_config_chu"),
        ("seed: [1", "--config: 'FILE' is not valid YAML, line 1, column 9"),
        ("seed: \x07", "--config: 'FILE' is not valid YAML: "),
        ("just text", "--config: 'FILE' holds no mapping of settings"),
        ("{? [1, 2] : 3}", "--config: 'FILE' is not valid YAML"),
        ("executor_config: {rounds_file: no.csv}", "--simulated_executor_config_rounds_file: 'no.csv' is not a file"),
        ('"a\\nb": 1', "--config: a b is not known"),
        ("seed: .nan", "--seed: nan is not allowed; an integer of at least 0 and at most 4,294,967,295 (in FILE)"),
        ("seed: true", "--seed: True is not allowed"),
        *(
            (f"seed: !!{tag} abc", "--config: 'FILE' is not valid YAML: a value does not fit its type (")
            for tag in ("bool", "timestamp", "int", "float")
        ),
        ("seed: !!int ''", "--config: 'FILE' is not valid YAML: a value does not fit its type ("),
        ("seed: " + "[" * 3000, "--config: 'FILE' is not valid YAML: it is nested too deeply"),
        ("seed: 1:30", "--seed: '1:30' is not allowed"),
        ("seed: 0x" + "f" * 5000, "--seed: a value of type int with thousands of digits is not allowed"),
        ('output_dir: "a\\0b"', r"--output_dir: 'a\x00b' is not allowed; text without NUL"),
        ('output_dir: "a\\ud800b"', r"--output_dir: 'a\ud800b' is not allowed; text without NUL"),
        ("scheduler_config_type: 3", "--scheduler_config_type: 3 is not allowed; one of SARATHI"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(tmp_path, text)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("error: " + message.replace("FILE", str(tmp_path / "c.yaml")))
    assert str(tmp_path / "c.yaml") in error


def values_of(config_type: type[c.Config], f: dataclasses.Field) -> st.SearchStrategy[Any]:
    """Values that a setting's declaration allows."""
    declared: Setting = f.metadata["setting"]
    hint = get_type_hints(config_type)[f.name]
    if declared.is_input_file:
        return st.just(f.default)
    low = declared.at_least if declared.at_least is not None else declared.above
    high = declared.at_most if declared.below is None else declared.below
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(int(low or 0), int(high)),
        float: st.floats(
            low,
            high,
            exclude_min=declared.above is not None,
            exclude_max=declared.below is not None,
            allow_nan=False,
            allow_infinity=False,
        ),
        bool: st.booleans(),
        str: st.text(st.characters(exclude_categories=["C"]), min_size=1).filter(
            lambda text: text.lower() not in ("null", "none")
        ),
        list: st.lists(st.lists(st.integers() | st.text(st.characters(exclude_categories=["C"])))),
        dict: st.dictionaries(  # targets of tenants, the one mapping that a setting holds beside a scheduler's own
            st.text("xyz", min_size=1),
            st.dictionaries(st.sampled_from(["ttft", "tpot"]), st.floats(0.001, 10), min_size=1),
        ),
        type(None): st.none(),
    }
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return st.one_of(
        [st.sampled_from(get_args(part)) if get_origin(part) is Literal else kinds[part] for part in parts]
    )


def configs(config_type: type[c.Config]) -> st.SearchStrategy[Any]:
    """Valid configs of a type, each component of any type that is available."""
    if config_type is c.CustomSchedulerConfig:
        return st.builds(
            c.CustomSchedulerConfig,
            class_path=st.just("a.b.C"),
            params=st.dictionaries(st.text("xyz", min_size=1), st.floats(allow_nan=False) | st.booleans() | st.none()),
        )
    if issubclass(
        config_type,
        c.TraceRequestLengthGeneratorConfig | c.TraceRequestGeneratorConfig | c.TraceRequestIntervalGeneratorConfig,
    ):
        return st.builds(config_type, trace_file=st.just(__file__), seed=st.none() | st.integers(0, MAX_INTEGER))
    arguments: dict[str, st.SearchStrategy[Any]] = {}
    for f in dataclasses.fields(config_type):
        if "component" in f.metadata:
            arguments[f.name] = configs(f.metadata["component"])
        elif "choice" in f.metadata:
            declared: Choice = f.metadata["choice"]
            arguments[f.name] = st.one_of([configs(t) for t in declared.types.values()])
        else:
            arguments[f.name] = values_of(config_type, f)
    if config_type is c.BenchmarkConfig:
        arguments["replica_resource_mapping"] = st.none()  # else it has an entry for each replica and worker
    if config_type is c.MetricsConfig:
        arguments |= {
            name: st.just("a") | st.none() for name in arguments if name.startswith("wandb") and "mode" not in name
        }
        arguments["write_metrics"] = st.just(True)  # wandb gets what is written
    if config_type is c.SarathiSchedulerConfig:
        arguments["low_chunk_size"] = st.integers(1, 100)
        arguments["high_chunk_size"] = st.integers(100, MAX_INTEGER)
        arguments["chunk_schedule_max_tokens"] = st.integers(1, MAX_INTEGER)
        arguments["chunk_schedule_stages"] = st.integers(1, 10**4)
    if config_type is c.SyntheticRequestGeneratorConfig:
        arguments["num_requests"] = st.integers(1, 10**7)
    if issubclass(config_type, c.UniformRequestLengthGeneratorConfig | c.ZipfRequestLengthGeneratorConfig):
        arguments["min_tokens"], arguments["max_tokens"] = st.integers(2, 100), st.integers(100, 10**7)
    if config_type is c.HeterogeneousRequestGeneratorConfig:
        arguments["burst_from"], arguments["burst_to"] = st.floats(0, 0.4), st.floats(0.4, 1)
    if issubclass(config_type, c.ApcSchedulerConfig):
        arguments["l_min"], arguments["chunk_size"] = st.integers(1, 100), st.integers(100, MAX_INTEGER)
    return st.builds(config_type, **arguments)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs(c.BenchmarkConfig))
def test_a_written_config_reads_back_equal(tmp_path: Path, config: c.BenchmarkConfig) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(c.to_yaml(config), encoding="utf-8")
    assert c.parse_args(["--config", str(path)]) == config


def test_written_config_holds_every_setting() -> None:
    content = yaml.safe_load(c.to_yaml(c.parse_args([])))
    assert content["scheduler_config"]["type"] == "SARATHI"
    assert content["scheduler_config"]["chunk_size"] == 512
    assert content["executor_config"]["type"] == "SIMULATED"
    assert content["request_generator_config"]["interval_generator_config"] == {
        "type": "STATIC",
        "seed": None,
        "interval": 0.1,
    }
    assert set(content) == {f.name for f in dataclasses.fields(c.BenchmarkConfig)}
