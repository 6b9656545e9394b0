"""Settings of what is recorded of a run, and of the latencies that its requests are promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sarathi.config.setting import MAX_NUMBER, Config, is_clean_text, setting
from sarathi.request import SloTargets

_OF_WANDB = {"needs": "wandb_project"}


@dataclass(frozen=True)
class MetricsConfig(Config):
    write_metrics: bool = setting(True, "Write the CSV files and the summary.")
    plots: bool = setting(True, "Draw the PNG plots.")
    report: bool = setting(True, "Write report.html.")
    wandb_project: str | None = setting(
        None, "Weights & Biases project that the run is also recorded in; null records it in none."
    )
    wandb_group: str | None = setting(None, "Weights & Biases group.", **_OF_WANDB)
    wandb_run_name: str | None = setting(
        None, "Weights & Biases run name; null takes scheduler and folder.", **_OF_WANDB
    )
    wandb_sweep_id: str | None = setting(None, "Weights & Biases sweep that the run belongs to.", **_OF_WANDB)
    wandb_run_id: str | None = setting(None, "Weights & Biases run to continue, or its new id.", **_OF_WANDB)
    wandb_tags: str | None = setting(None, "Weights & Biases tags, separated by commas.", **_OF_WANDB)
    wandb_mode: Literal["auto", "online", "offline"] = setting(
        "auto",
        "auto is WANDB_MODE if that is set, else online where wandb knows an API key, else offline.",
        **_OF_WANDB,
    )
    enable_op_level_metrics: bool = setting(
        False, "Time each operator of the model, a row a round in operators.csv; slows real rounds a little."
    )
    enable_cpu_op_level_metrics: bool = setting(
        False, "Time the engine's own work on the host, a row a round in cpu_operators.csv."
    )
    enable_chrome_trace: bool = setting(False, "Write chrome_trace.json; large for long runs.")
    enable_request_outputs: bool = setting(
        False,
        "Write each request's output tokens and text, a line a request in outputs.jsonl.",
        no_effect="simulated rounds make no tokens",
        no_effect_with=("SIMULATED",),
    )
    keep_individual_batch_metrics: bool = setting(
        False, "Upstream's switch for single rounds.", no_effect="rounds.csv always holds every round"
    )

    def check(self) -> None:
        """wandb's own rules for names, checked here because what it refuses later would not end the run."""
        if self.wandb_project is not None and not self.write_metrics:
            self.reject("wandb_project", "null where write_metrics is false: wandb gets what the files hold")
        for name, refused in (("wandb_project", "/\\#?%:"), ("wandb_run_id", "/\\#?%:;,'"), ("wandb_sweep_id", "")):
            value = getattr(self, name)
            if value is not None and (value != value.strip() or len(value) > 128 or set(value) & set(refused)):
                without = f", without {' '.join(refused)}" if refused else ""
                self.reject(name, f"at most 128 characters, no space at either end{without}")
        if any(len(tag) > 64 for tag in tag_names(self.wandb_tags)):
            self.reject("wandb_tags", "tags of at most 64 characters, separated by commas")


def tag_names(text: str | None) -> tuple[str, ...]:
    """The tags in a text that separates them by commas, each once."""
    return tuple(dict.fromkeys(tag.strip() for tag in (text or "").split(",") if tag.strip()))


@dataclass(frozen=True)
class SloConfig(Config):
    """What requests are promised; goodput counts those that finish within all of their targets."""

    ttft: float | None = setting(None, "Target of the time to first token; null sets none.", unit="seconds", above=0)
    tpot: float | None = setting(
        None, "Target of the time per output token after the first; null sets none.", unit="seconds", above=0
    )
    classes: dict | None = setting(
        None, 'Other targets for some tenants, JSON, as in {"long": {"ttft": 10}}; what one leaves out is as above.'
    )

    def check(self) -> None:
        allowed = 'tenants with targets in seconds above 0, or null, as in {"long": {"ttft": 10, "tpot": null}}'
        for tenant, targets in (self.classes or {}).items():
            is_one = is_clean_text(tenant) and isinstance(targets, dict) and targets
            if not is_one or not all(name in SloTargets._fields and _is_target(targets[name]) for name in targets):
                self.reject("classes", allowed)

    def targets(self) -> Callable[[str], SloTargets]:
        """What gives the targets of a tenant's requests."""
        default = {"ttft": self.ttft, "tpot": self.tpot}
        others = SloTargets(**default)
        of_class = {tenant: SloTargets(**{**default, **own}) for tenant, own in (self.classes or {}).items()}
        return lambda tenant: of_class.get(tenant, others)


def _is_target(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and value is not True and 0 < value <= MAX_NUMBER)
