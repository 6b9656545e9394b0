"""Which part of which checkpoint's tensor a weight is made of: fused layers, and ranks that have a share of each.

Knows layers and slices, and no model's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from sarathi.model.layers import GatedLinear, Linear


class Target(NamedTuple):
    """Where a checkpoint's tensor goes: the part of its dimension `dim` from `start` on that fills `weight`."""

    weight: Tensor
    dim: int = 0
    start: int = 0


def share_of(size: int, rank: int) -> range:
    """Where the share of `size` that belongs to a rank lies in the whole."""
    return range(rank * size, (rank + 1) * size)


def rows_of(linear: Linear | GatedLinear, parts: Mapping[str, range]) -> dict[str, Target]:
    """Weight and bias of a layer that is made of these rows of the named tensors, one after the other."""
    targets: dict[str, Target] = {}
    for kind in ("weight", "bias"):
        fused: Tensor | None = getattr(linear, kind)
        if fused is not None:
            pieces = fused.split([len(rows) for rows in parts.values()])
            for (name, rows), piece in zip(parts.items(), pieces, strict=True):
                targets[f"{name}.{kind}"] = Target(piece, 0, rows.start)
    return targets


def columns_of(linear: Linear, name: str, start: int) -> dict[str, Target]:
    """A layer's weight, of the named tensor's columns from `start` on, and its bias, if it is this rank's."""
    assert linear.weight is not None
    targets = {f"{name}.weight": Target(linear.weight, 1, start)}
    if linear.bias is not None:
        targets[f"{name}.bias"] = Target(linear.bias)
    return targets
