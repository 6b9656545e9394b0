"""Settings by their bare names, as the Python API takes them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from sarathi import config as c
from sarathi.config.setting import fields_of


def test_settings_find_their_component() -> None:
    config = c.system_config_from(
        "smollm2",
        {
            "scheduler": "aging",
            "alpha": "auto",
            "chunk_size": 256,
            "dtype": "float32",
            "num_threads": 2,
            "block_size": 8,
        },
    )
    assert config == c.SystemConfig(
        model_config=c.ModelConfig(model="smollm2", dtype="float32"),
        scheduler_config=c.AgingSchedulerConfig(alpha="auto", chunk_size=256),
        executor_config=c.LocalExecutorConfig(num_threads=2),
        cache_config=c.CacheConfig(block_size=8),
    )
    simulated = c.system_config_from("smollm2", {"executor": "simulated", "device": "h100"})
    assert simulated.executor_config == c.SimulatedExecutorConfig(device="h100")


def test_an_own_scheduler_by_its_path() -> None:
    config = c.system_config_from("smollm2", {"scheduler": "package.Mine", "params": {"weight": 2}, "chunk_size": 64})
    expected = c.CustomSchedulerConfig(class_path="package.Mine", params={"weight": 2}, chunk_size=64)
    assert config.scheduler_config == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk_sise": 1}, "chunk_sise: unknown setting; did you mean chunk_size? "),
        ({"alpha": 150.0}, "alpha: unknown setting"),  # of another scheduler than the default
        ({"engine_profile": "lean"}, "engine_profile: unknown setting"),
        ({"dtype": "float8"}, "ModelConfig.dtype: 'float8' is not allowed; one of auto, half"),
        ({"chunk_size": "256"}, "SarathiSchedulerConfig.chunk_size: '256' is not allowed; an integer"),
        ({"scheduler": "fifo"}, "scheduler: 'fifo' is not known; one of SARATHI"),
        ({"scheduler": 3}, "scheduler: 3 is not allowed; one of SARATHI"),
        ({"executor": "cloud"}, "executor: 'cloud' is not known; one of AUTO, SIMULATED, LOCAL, RAY"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}[^\\n]*$"):
        c.system_config_from("smollm2", settings)


@pytest.mark.parametrize("executor", c.EXECUTOR_CONFIGS.values())
@pytest.mark.parametrize("scheduler", [*c.SCHEDULER_CONFIGS.values(), c.CustomSchedulerConfig])
def test_no_name_means_two_settings(scheduler: type[c.Config], executor: type[c.Config]) -> None:
    metadata = [f.metadata for f in fields_of(c.SystemConfig).values()]
    types = [scheduler, executor, *(m["component"] for m in metadata if "component" in m)]
    names = Counter(name for config_type in types for name in fields_of(config_type))
    assert [name for name, count in names.items() if count > 1] == []
