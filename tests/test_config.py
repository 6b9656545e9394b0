"""Settings as Python objects: defaults, what is refused, and names shared with other modules."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sarathi import config as c
from sarathi.config.setting import check_value, fields_of, value_types
from sarathi.config.tree import sections


def test_upstream_style_construction() -> None:
    system = c.SystemConfig(
        replica_config=c.ReplicaConfig(output_dir="out"),
        model_config=c.ModelConfig(model="smollm2"),
        worker_config=c.WorkerConfig(),
        cache_config=c.CacheConfig(block_size=32),
        parallel_config=c.ParallelConfig(pipeline_parallel_size=2, tensor_parallel_size=4),
        scheduler_config=c.AgingSchedulerConfig(chunk_size=256),
        metrics_config=c.MetricsConfig(),
    )
    assert system.parallel_config.world_size == 8
    assert system.scheduler_config.max_num_seqs == 128
    with pytest.raises(dataclasses.FrozenInstanceError):
        system.cache_config.block_size = 8  # pyright: ignore[reportAttributeAccessIssue]


def test_system_config_of_a_benchmark_keeps_every_component() -> None:
    benchmark = c.BenchmarkConfig(
        worker_config=c.WorkerConfig(gpu_memory_utilization=0.5), scheduler_config=c.SpfSchedulerConfig(chunk_size=64)
    )
    system = benchmark.create_system_config(c.ReplicaConfig(replica_id=3))
    for f in dataclasses.fields(c.EndpointConfig):
        assert getattr(system, f.name) is getattr(benchmark, f.name)
    assert system.replica_config.replica_id == 3


def test_system_config_of_a_benchmark_keeps_its_workers_places() -> None:
    mapping = [[["10.0.0.1", 0]], [["10.0.0.2", 1]]]
    benchmark = c.BenchmarkConfig(num_replicas=2, replica_resource_mapping=mapping)
    second = benchmark.create_system_config(c.ReplicaConfig(replica_id=1))
    assert benchmark.create_system_config().worker_places.mapping == mapping[0]
    assert second.worker_places.mapping == mapping[1]
    own = c.ReplicaConfig(resource_mapping=[["10.0.0.3", 2]])
    assert benchmark.create_system_config(own).worker_places.mapping == [["10.0.0.3", 2]]


@pytest.mark.parametrize(
    ("config_type", "settings", "message"),
    [
        (
            c.SarathiSchedulerConfig,
            {"chunk_size": 0},
            "SarathiSchedulerConfig.chunk_size: 0 is not allowed; an integer",
        ),
        (c.SarathiSchedulerConfig, {"chunk_size": True}, "chunk_size: True is not allowed"),
        (c.SarathiSchedulerConfig, {"chunk_size": 1.0}, "chunk_size: 1.0 is not allowed"),
        (c.VllmSchedulerConfig, {"max_num_seqs": -1}, "max_num_seqs: -1 is not allowed; an integer of at least 1"),
        (c.AgingSchedulerConfig, {"beta": 0}, "beta: 0.0 is not allowed; a number below 0"),
        (
            c.AgingSchedulerConfig,
            {"alpha": "often"},
            "alpha: 'often' is not allowed; a number above 0 and at most 1,000,000,000,000 or auto",
        ),
        (
            c.AgingSchedulerConfig,
            {"alpha": 0},
            "alpha: 0.0 is not allowed; a number above 0 and at most 1,000,000,000,000 or auto",
        ),
        (c.SimulatedExecutorConfig, {"jitter": 1.5}, "jitter: 1.5 is not allowed; a number of at least 0 and at most"),
        (c.BenchmarkConfig, {"seed": 2**53 + 1}, "seed: 9007199254740993 is not allowed; an integer of at "),
        (c.AgingSchedulerConfig, {"alpha": float("nan")}, "alpha: nan is not allowed"),
        (c.SimulatedExecutorConfig, {"device": "rtx_3090"}, "device: 'rtx_3090' is not allowed; one of rtx_4090, "),
        (
            c.PoissonRequestIntervalGeneratorConfig,
            {"qps": float("inf")},
            "qps: inf is not allowed; a number of at least",
        ),
        (c.WorkerConfig, {"gpu_memory_utilization": 1.5}, "1.5 is not allowed; a number above 0 and at most 1"),
        (c.ModelConfig, {"model": ""}, "model: '' is not allowed"),
        (c.ModelConfig, {"revision": 7}, "revision: 7 is not allowed; non-empty text or null"),
        (
            c.SystemConfig,
            {"model_config": {"model": "x"}},
            "model_config: {'model': 'x'} is not allowed; a ModelConfig",
        ),
        (c.TraceRequestGeneratorConfig, {}, "trace_file: a CSV file with columns arrived_at (seconds), num_prefill"),
        (c.TraceRequestLengthGeneratorConfig, {}, "trace_file: a CSV file with columns num_prefill_tokens, num_decode"),
        (
            c.BenchmarkConfig,
            {"num_replicas": 0},
            "num_replicas: 0 is not allowed; an integer of at least 1 and at most",
        ),
        (c.SloConfig, {"ttft": 0}, "SloConfig.ttft: 0.0 is not allowed; a number above 0"),
        (
            c.SloConfig,
            {"classes": {"a": {"e2e": 1}}},
            "SloConfig.classes: {'a': {'e2e': 1}} is not allowed; tenants with",
        ),
        (
            c.SloConfig,
            {"classes": {"a": {"ttft": -1}}},
            "SloConfig.classes: {'a': {'ttft': -1}} is not allowed; tenants with",
        ),
        (c.SloConfig, {"classes": {"a": 1}}, "SloConfig.classes: {'a': 1} is not allowed; tenants with"),
        (c.CustomSchedulerConfig, {"class_path": "MyScheduler"}, "class_path: 'MyScheduler' is not allowed"),
    ],
)
def test_refused_at_construction(config_type: type, settings: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        config_type(**settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_dynamic_schedule_needs_its_settings() -> None:
    settings: dict = {"low_chunk_size": 128, "high_chunk_size": 512, "chunk_schedule_max_tokens": 4096}
    with pytest.raises(ValueError, match=r"chunk_schedule_stages: an integer of at least 1, .* is needed"):
        c.SarathiSchedulerConfig(enable_dynamic_chunking_schedule=True, **settings)
    c.SarathiSchedulerConfig(enable_dynamic_chunking_schedule=True, chunk_schedule_stages=4, **settings)
    with pytest.raises(ValueError, match="low_chunk_size: 513 is not allowed; at most high_chunk_size, which is 512"):
        c.SarathiSchedulerConfig(low_chunk_size=513, high_chunk_size=512)


def test_integers_become_floats_where_floats_are_declared() -> None:
    beta = c.AgingSchedulerConfig(beta=-2).beta
    assert type(beta) is float
    assert beta == -2


def test_seeds_left_to_the_run() -> None:
    interval = c.PoissonRequestIntervalGeneratorConfig(seed=5)
    generator = c.SyntheticRequestGeneratorConfig(interval_generator_config=interval)
    resolved = c.resolve_seeds(c.BenchmarkConfig(seed=7, request_generator_config=generator), 7)
    assert resolved.request_generator_config.seed == 7
    assert isinstance(resolved.request_generator_config, c.SyntheticRequestGeneratorConfig)
    assert resolved.request_generator_config.length_generator_config.seed == 7
    assert resolved.request_generator_config.interval_generator_config.seed == 5
    assert isinstance(resolved.executor_config, c.SimulatedExecutorConfig)
    assert resolved.executor_config.jitter_seed == 7
    assert resolved.model_config.seed == 0


def test_ranges_are_those_that_the_parts_allow() -> None:
    """The limits of a range pass both the setting and the part it goes to."""
    from sarathi.core.order import Aging
    from sarathi.simulation.latency import Jitter

    for sigma in (0, 1):
        Jitter(c.SimulatedExecutorConfig(jitter=sigma).jitter, seed=0)
    for alpha in (0, -1.0):
        for refuse in (lambda alpha: c.AgingSchedulerConfig(alpha=alpha), lambda alpha: Aging(alpha, -1.0)):
            with pytest.raises(ValueError, match="alpha"):
                refuse(alpha)


SOURCE = Path(c.__file__).parents[1]


def settings_of(config_type: type[c.Config]) -> set[tuple[str, bool]]:
    """(name, whether it is said to have an effect) of each setting of a tree."""
    names: set[tuple[str, bool]] = set()
    for f in dataclasses.fields(config_type):
        if "component" in f.metadata:
            names |= settings_of(f.metadata["component"])
        elif "choice" in f.metadata:
            declared = f.metadata["choice"]
            for chosen in declared.types.values():
                names |= settings_of(chosen)
        else:
            declared = f.metadata["setting"]
            names.add((f.name, not declared.no_effect))
    return names


def test_a_setting_that_nothing_reads_says_that_it_has_no_effect() -> None:
    files = [path for path in SOURCE.rglob("*.py") if SOURCE / "config" not in path.parents]
    files += (SOURCE.parent / "examples").glob("*.py")  # params is for classes outside the package
    read = set(re.findall(r"\.(\w+)\b", "\n".join(path.read_text(encoding="utf-8") for path in files)))
    settings = settings_of(c.BenchmarkConfig) | settings_of(c.SystemConfig)
    assert {name for name, has_effect in settings if has_effect and name not in read} == set()
    assert {name for name, has_effect in settings if not has_effect} >= {
        "load_format", "trust_remote_code", "revision", "download_dir", "attention_backend", "resource_mapping",
        "keep_individual_batch_metrics",
    }  # fmt: skip


def test_names_of_devices_and_engine_profiles_are_those_that_are_simulated() -> None:
    devices = pytest.importorskip("sarathi.simulation.devices")
    assert set(c.DEVICE_NAMES) == set(devices.DEVICES)
    assert set(c.ENGINE_PROFILE_NAMES) == set(devices.ENGINE_PROFILES)


def test_every_scheduler_has_settings() -> None:
    variants = pytest.importorskip("sarathi.core.variants")
    assert set(c.SCHEDULER_CONFIGS) == set(variants.SCHEDULERS)


def test_import_and_parse_load_nothing_heavy() -> None:
    program = (
        "import sys, sarathi.config as c; c.parse_args(['--scheduler_config_type', 'AGING']);"
        "print([m for m in ('numpy', 'yaml', 'json', 'difflib', 'torch') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_number_has_limits() -> None:
    """So that no setting overflows, fills the memory or takes for ever; a type that is refused for now too."""
    for section in sections(c.BenchmarkConfig).values():
        for name, f in fields_of(section.config_type).items():
            kinds = value_types(section.config_type, name)[0] if "setting" in f.metadata else ()
            for kind in {int, float} & set(kinds):
                for value in (kind(10**13), kind(-(10**13)), 10**400, -(10**400)):
                    with pytest.raises(ValueError, match=f"{name}: .* is not allowed; ") as error:
                        check_value(section.config_type, name, value)
                    assert len(str(error.value)) < 500
