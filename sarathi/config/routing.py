"""Settings of the routing of requests to replicas."""

from __future__ import annotations

from dataclasses import dataclass

from sarathi.config.setting import MAX_SEED, Config, setting


@dataclass(frozen=True)
class RoutingConfig(Config):
    """Base of all rules."""


@dataclass(frozen=True)
class RoundRobinRoutingConfig(RoutingConfig):
    """Each replica in turn."""


@dataclass(frozen=True)
class LeastOutstandingTokensRoutingConfig(RoutingConfig):
    """The replica whose unfinished requests have the fewest tokens."""


@dataclass(frozen=True)
class RandomRoutingConfig(RoutingConfig):
    """Any replica, drawn uniformly."""

    seed: int | None = setting(None, "Seed of the draws; null takes the run's seed.", at_least=0, at_most=MAX_SEED)


@dataclass(frozen=True)
class PredictedWaitRoutingConfig(RoutingConfig):
    """The replica that should compute the prompt first, by its backlog and its measured pace."""


ROUTING_CONFIGS: dict[str, type[RoutingConfig]] = {
    "ROUND_ROBIN": RoundRobinRoutingConfig,
    "LEAST_OUTSTANDING_TOKENS": LeastOutstandingTokensRoutingConfig,
    "RANDOM": RandomRoutingConfig,
    "PREDICTED_WAIT": PredictedWaitRoutingConfig,
}
