"""Settings of a benchmark run: the top of the tree."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeVar

from sarathi.config.routing import ROUTING_CONFIGS, RoutingConfig
from sarathi.config.setting import (
    MAX_SEED,
    Config,
    Setting,
    choice,
    chosen_type,
    default_of,
    flag_prefix,
    setting,
)
from sarathi.config.system import (
    PLACES_OF_RAY,
    EndpointConfig,
    ReplicaConfig,
    SystemConfig,
    WorkerPlaces,
    are_node_device_pairs,
)
from sarathi.config.workloads import REQUEST_GENERATOR_CONFIGS, RequestGeneratorConfig

ConfigT = TypeVar("ConfigT", bound=Config)


@dataclass(frozen=True)
class BenchmarkConfig(EndpointConfig):
    log_level: Literal["debug", "info", "warning", "error", "critical"] = setting("info", "Least level that is logged.")
    output_dir: str = setting("benchmark_output", "Folder in which each run makes its own.")
    seed: int = setting(42, "Seed of the run.", at_least=0, at_most=MAX_SEED)
    write_json_trace: bool = setting(True, "Write the requests of the run as JSON.")
    enable_profiling: bool = setting(
        False, "Profile the run: profile.pstats of simulated rounds, profile.json.gz of a model's first ones."
    )
    time_limit: float | None = setting(
        None, "End the run at this time of the engine's clock; null lets it finish.", unit="seconds", above=0
    )
    num_replicas: int = setting(1, "Engines that share the load.", unit="replicas", at_least=1, at_most=256)
    routing_config: RoutingConfig = choice(
        ROUTING_CONFIGS, "ROUND_ROBIN", "routing_config", "Which of several replicas a request goes to."
    )
    replica_resource_mapping: list | None = setting(
        None,
        'For each replica, node and device of each worker, JSON, as in [[["10.0.0.1", 0]]].',
        **PLACES_OF_RAY,
    )
    request_generator_config: RequestGeneratorConfig = choice(
        REQUEST_GENERATOR_CONFIGS, "SHAREGPT", "request_generator_config", "Where requests come from."
    )

    def check(self) -> None:
        mapping, num_workers = self.replica_resource_mapping, self.parallel_config.world_size
        if mapping is None:
            return
        if len(mapping) != self.num_replicas or not all(
            are_node_device_pairs(pairs) and len(pairs) == num_workers for pairs in mapping
        ):
            allowed = (
                f"null or a list with one entry for each replica ({self.num_replicas}) of as many pairs of node (null: "
                f"any) and device as it has workers ({num_workers})"
            )
            self.reject("replica_resource_mapping", f'{allowed}, as in [[["10.0.0.1", 0]]]')

    @property
    def worker_places(self) -> WorkerPlaces:
        mapping = self.replica_resource_mapping
        return WorkerPlaces("replica_resource_mapping", mapping and mapping[0])

    def create_system_config(self, replica_config: ReplicaConfig | None = None) -> SystemConfig:
        """The part that an engine needs. Its workers' places are `replica_config`'s, else this replica's here."""
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(EndpointConfig)}
        replica, mapping = replica_config or ReplicaConfig(), self.replica_resource_mapping
        if replica.resource_mapping is None and mapping is not None and replica.replica_id < len(mapping):
            replica = dataclasses.replace(replica, resource_mapping=mapping[replica.replica_id])
        return SystemConfig(**shared, replica_config=replica)


def without_effect(config: Config) -> list[str]:
    """One line for each setting that was changed from its default and does nothing, naming its flag and why."""
    executor = chosen_type(config, "executor_config") if isinstance(config, EndpointConfig) else ""
    return _without_effect(config, executor, "")


def _without_effect(config: Config, executor: str, prefix: str) -> list[str]:
    notices: list[str] = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Config):
            notices += _without_effect(value, executor, f"{flag_prefix(config, f.name)}_")
            continue
        declared: Setting = f.metadata["setting"]
        is_idle = declared.no_effect and (not declared.no_effect_with or executor in declared.no_effect_with)
        if is_idle and value != default_of(f):
            notices.append(f"--{prefix}{f.name} has no effect: {declared.no_effect}")
        elif declared.needs and getattr(config, declared.needs) is None and value != default_of(f):
            notices.append(f"--{prefix}{f.name} has no effect without --{prefix}{declared.needs}")
    return notices


def resolve_seeds(config: ConfigT, run_seed: int) -> ConfigT:
    """The same config with every seed that is left open set to that of the config around it, or to `run_seed`."""
    changes = {}
    own_seed = getattr(config, "seed", None)
    seed = run_seed if own_seed is None else own_seed
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Config):
            changes[f.name] = resolve_seeds(value, seed)
        elif value is None and (f.name == "seed" or f.name.endswith("_seed")):
            changes[f.name] = seed
    return dataclasses.replace(config, **changes)
