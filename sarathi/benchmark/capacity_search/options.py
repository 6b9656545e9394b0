"""The search's own flags: which latencies must hold, how far to search, where files go.

Flags of sarathi.benchmark.main pass through; nothing here knows them, but one that would be mistaken for ours.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from sarathi.config.setting import Config, Setting, as_typed, default_of, fields_of, parse_text, setting, value_types
from sarathi.errors import FieldError, FlagError

PROGRAM = "python -m sarathi.benchmark.capacity_search.main"
ABOUT = (
    "Searches, for every valid combination of the schedulers, traces, parallel_spec and models of a YAML file, the "
    "highest rate of requests at which all latency objectives hold. Every further --<setting> VALUE of "
    "sarathi.benchmark.main holds for every probe. A search that was cut short goes on when it is started again."
)
# What may be bounded, and how tables and plots call it.
QUANTITIES = {
    "scheduling_delay": "scheduling delay",
    "tbt": "time between tokens",
    "ttft": "time to first token",
    "e2e": "end-to-end time",
}


def _value(default: float | None, what: str) -> Any:
    off = "" if default is not None else "; null sets no limit"
    return setting(default, f"Most that {what} may be at its quantile{off}.", unit="seconds", above=0)


def _quantile(default: float, what: str) -> Any:
    return setting(default, f"Quantile of {what} that is bounded.", at_least=0, at_most=1)


class Slo(NamedTuple):
    """A quantile of `quantity`, one of QUANTITIES, and the limit to it in seconds; inf where it is told only."""

    quantity: str
    quantile: float
    limit: float

    @property
    def label(self) -> str:
        return f"{QUANTITIES[self.quantity]} {quantile_name(self.quantile)}"

    def holds(self, value: float | None) -> bool:
        """Whether the quantile `value` is within the limit; one of no samples (None) is."""
        return value is None or value <= self.limit


def quantile_name(quantile: float) -> str:
    """P99 for 0.99."""
    return f"P{100 * quantile:.10g}"


@dataclass(frozen=True)
class SearchOptions(Config):
    config_path: str | None = setting(None, "YAML file with schedulers, traces, parallel_spec and models.")
    output_dir: str | None = setting(None, "Folder of results and probes; an earlier search there is gone on with.")
    scheduling_delay_slo_value: float | None = _value(2.0, "the scheduling delay")
    scheduling_delay_slo_quantile: float = _quantile(0.5, "the scheduling delay")
    tbt_slo_value: float | None = _value(0.2, "the time between tokens")
    tbt_slo_quantile: float = _quantile(0.99, "the time between tokens")
    ttft_slo_value: float | None = _value(None, "the time to first token")
    ttft_slo_quantile: float = _quantile(0.99, "the time to first token")
    e2e_slo_value: float | None = _value(None, "the end-to-end time")
    e2e_slo_quantile: float = _quantile(0.99, "the end-to-end time")
    min_search_granularity: float = setting(
        2.5,
        "End once the rate that holds and the one that does not are so close.",
        unit="%",
        at_least=1e-3,
        at_most=100,
    )
    max_iterations: int = setting(20, "Most probes of a job.", unit="probes", at_least=1, at_most=1000)
    time_limit: float = setting(
        30.0,
        "Longest probe, on the engine's clock; requests cut off after more than a limit break it.",
        unit="minutes",
        above=0,
    )
    num_workers: int | None = setting(
        None,
        "Jobs that run at the same time; null takes a process a core, and one where a real model runs.",
        unit="processes",
        at_least=1,
        at_most=1024,
    )
    debug: bool = setting(False, "Log every probe's command and a failed one's traceback.")
    wandb_project: str | None = setting(None, "Weights & Biases project that every probe becomes a run of.")
    wandb_sweep_name: str | None = setting(None, "Tag of these runs; no sweep is created, that would need an account.")
    wandb_sweep_id: str | None = setting(None, "Sweep, made before, that these runs belong to.")

    def check(self) -> None:
        self.require("config_path", "a YAML file of schedulers, traces, parallel_spec and models")
        self.require("output_dir", "a folder")
        if not self.slos:
            self.reject("scheduling_delay_slo_value", "a number of seconds, as no other objective is set either")
        for name in ("wandb_sweep_name", "wandb_sweep_id"):
            if getattr(self, name) is not None and self.wandb_project is None:
                self.reject(name, "null, or name a --wandb-project too")

    @property
    def targets(self) -> list[Slo]:
        """Every quantity with its quantile, bounded or not."""
        limits = {name: getattr(self, f"{name}_slo_value") for name in QUANTITIES}
        return [Slo(n, getattr(self, f"{n}_slo_quantile"), math.inf if v is None else v) for n, v in limits.items()]

    @property
    def slos(self) -> list[Slo]:
        """The objectives that are set."""
        return [target for target in self.targets if target.limit < math.inf]


def parse_options(argv: Sequence[str]) -> tuple[SearchOptions, list[str]]:
    """The search's options, and the rest of the command line in its order.

    Raises FlagError, one line naming the flag. --help ends the process.
    """
    parser = _parser()
    namespace, rest = parser.parse_known_args(argv)
    given: dict[str, Any] = {}
    try:
        for name, text in vars(namespace).items():
            given[name] = parse_text(SearchOptions, name, text)
        options = SearchOptions(**given)
    except FieldError as error:
        raise FlagError(_dashed(error.field), error.text) from None
    for argument in rest:
        if argument.split("=")[0] == "--time_limit":
            raise FlagError("time_limit", "--time-limit, in minutes, bounds a probe")
    return options, rest


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} --config-path FILE.yml --output-dir DIR [--<setting> VALUE ...]",
        description=ABOUT,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=8, width=120),
    )
    for name, f in fields_of(SearchOptions).items():
        declared: Setting = f.metadata["setting"]
        notes = ", ".join(text for text in (declared.unit, f"default {as_typed(default_of(f))}") if text)
        kinds, _, _ = value_types(SearchOptions, name)
        is_switch = bool in kinds
        flags = dict.fromkeys([f"--{_dashed(name)}"] + ([] if name == "time_limit" else [f"--{name}"]))
        parser.add_argument(
            *flags,
            dest=name,
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
            help=f"{declared.help.rstrip('.')} ({notes})".replace("%", "%%"),
            metavar="true|false" if is_switch else kinds[0].__name__.upper(),
        )
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        flag, _, problem = text.partition(": ")
        raise FlagError(flag.split("/")[0].lstrip("-"), problem.replace("expected one argument", "a value is needed"))
