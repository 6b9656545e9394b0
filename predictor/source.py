"""What a set of rounds was measured on, and so what a model trained on them is good for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Source:
    """Device, LLM and engine of recorded rounds; the names are those of a run's summary.json."""

    device: str
    model: str  # the LLM
    engine_profile: str = ""  # of a simulated device
    dtype_bytes: int = 2  # of a weight
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    simulated: bool = True
    jitter: float = 0.0  # relative standard deviation of simulated round times

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = type(value := getattr(self, field.name)).__name__
            if kind != field.type and (kind, field.type) != ("int", "float"):
                raise ValueError(f"{field.name}: {value!r} is not allowed; a value of type {field.type}")

    def __str__(self) -> str:
        parts = [f"{self.model} on {self.device}{' (simulated)' if self.simulated else ''}"]
        if self.engine_profile:
            parts.append(f"engine profile {self.engine_profile}")
        if self.tensor_parallel_size > 1 or self.pipeline_parallel_size > 1:
            parts.append(f"TP {self.tensor_parallel_size}, PP {self.pipeline_parallel_size}")
        if self.dtype_bytes != 2:
            parts.append(f"{self.dtype_bytes} bytes a weight")
        if self.jitter:
            parts.append(f"jitter {self.jitter:g}")
        return ", ".join(parts)

    def differences(self, other: Source) -> list[str]:
        """`name: ours against theirs` for each field in which the two differ."""
        ours, theirs = asdict(self), asdict(other)
        return [f"{name}: {ours[name]} against {theirs[name]}" for name in ours if ours[name] != theirs[name]]
