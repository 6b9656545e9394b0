"""The parts of a transformer: linear layers with packed weights, norms, rotary embedding, MLPs.

They know sizes and tensors, and neither batches nor the names that checkpoints give them. Weights are plain tensors,
empty until somebody fills them, and packed afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sarathi.model.architecture import Architecture, Rope
from sarathi.model.packed import PackedGated, PackedLinear, compiled_ops, pack_gated, pack_linear
from sarathi.worker.parallel import SINGLE, Parallel


class Linear(nn.Module):
    """x W^T + b. `weight` is (out_features, in_features) until `pack` takes its place."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight: Tensor | None = torch.empty(out_features, in_features, dtype=dtype)
        self.bias = torch.empty(out_features, dtype=dtype) if bias else None
        self._packed: PackedLinear | None = None

    def pack(self) -> None:
        """Lay the weight out for the device's kernels, where there are some; the plain one is given up."""
        assert self.weight is not None
        self._packed = pack_linear(self.weight, self.bias)
        if self._packed is not None:
            self.weight = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(T, in_features) to (T, out_features), added to `residual`."""
        if self._packed is not None:
            return self._packed(x, residual)
        assert self.weight is not None
        y = functional.linear(x, self.weight, self.bias)
        return y if residual is None else y.add_(residual)


class RowParallelLinear(Linear):
    """A Linear of which each rank of a tensor group has the columns for its part of x; their products are summed.

    Bias and residual count once: on tensor rank 0.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, parallel: Parallel = SINGLE
    ) -> None:
        super().__init__(in_features, out_features, bias and parallel.tensor_rank == 0, dtype)
        self._parallel = parallel

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(T, in_features) to (T, out_features), the same on every rank, as `residual` must be."""
        return self.reduce(super().forward(x, residual if self._parallel.tensor_rank == 0 else None))

    def reduce(self, y: Tensor) -> Tensor:
        """The sum over the tensor group, in place; apart, so that it can be timed apart."""
        return self._parallel.all_reduce(y)


class VocabularyEmbedding(nn.Module):
    """A row for each token id. `weight` is (len(rows), hidden_size), of this rank's `vocabulary_rows`."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype, parallel: Parallel = SINGLE) -> None:
        super().__init__()
        self._rows = vocabulary_rows(vocab_size, parallel)
        self._parallel = parallel
        self.weight = torch.empty(len(self._rows), hidden_size, dtype=dtype)

    def forward(self, token_ids: Tensor) -> Tensor:
        """(T,) to (T, hidden_size), the same on every rank."""
        if self._parallel.tensor_size == 1:
            return functional.embedding(token_ids, self.weight)
        places = token_ids - self._rows.start
        elsewhere = (places < 0) | (places >= len(self._rows))
        x = functional.embedding(places.masked_fill_(elsewhere, 0), self.weight)
        return self._parallel.all_reduce(x.masked_fill_(elsewhere[:, None], 0))


def vocabulary_rows(vocab_size: int, parallel: Parallel) -> range:
    """A rank's rows of embedding and LM head: as many on each, so the last may go beyond the vocabulary unread."""
    size = -(-vocab_size // parallel.tensor_size)
    return range(parallel.tensor_rank * size, (parallel.tensor_rank + 1) * size)


class GatedLinear(nn.Module):
    """silu(x G^T + g) * (x U^T + u): gate and up projection of an MLP, and what joins them.

    `weight` is (2 * out_features, in_features), gate above up, until `pack` takes its place.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight: Tensor | None = torch.empty(2 * out_features, in_features, dtype=dtype)
        self.bias = torch.empty(2 * out_features, dtype=dtype) if bias else None
        self._packed: PackedGated | None = None

    def pack(self) -> None:
        """As Linear.pack."""
        assert self.weight is not None
        self._packed = pack_gated(self.weight, self.bias)
        if self._packed is not None:
            self.weight = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return self._packed(x)
        assert self.weight is not None
        gate, up = functional.linear(x, self.weight, self.bias).chunk(2, -1)
        return functional.silu(gate).mul_(up)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the quotient in float32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.empty(size, dtype=dtype)
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if (ops := compiled_ops(self.weight)) is not None:
            return ops.rms_norm(x, self.weight, self._eps)
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(self._eps).rsqrt_()
        return (wide * scale).to(x.dtype).mul_(self.weight)


class RotaryEmbedding(nn.Module):
    """cos and sin of a round's positions, in float32 as they are made, and their application to heads."""

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.inverse_frequencies = rope.inverse_frequencies(head_dim)
        self._dtype = dtype

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, (T, 1, head_dim), and sin, (T, 1, head_dim / 2)."""
        angles = torch.outer(positions.float(), self.inverse_frequencies)[:, None]
        cos = angles.cos()
        return torch.cat((cos, cos), -1).to(self._dtype), angles.sin().to(self._dtype)

    @staticmethod
    def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate (T, num_heads, head_dim): halves (a, b) become (a cos - b sin, b cos + a sin)."""
        a, b = heads.chunk(2, -1)
        rotated = heads * cos
        first, second = rotated.chunk(2, -1)
        first.addcmul_(b, sin, value=-1)
        second.addcmul_(a, sin)
        return rotated


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)). `intermediate_size` is this rank's share of the width."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, bias: bool, dtype: torch.dtype, parallel: Parallel = SINGLE
    ) -> None:
        super().__init__()
        self.gate_up = GatedLinear(hidden_size, intermediate_size, bias, dtype)
        self.down = RowParallelLinear(intermediate_size, hidden_size, bias, dtype, parallel)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(T, hidden_size) to the same, added to `residual`."""
        return self.down(self.gate_up(x), residual)


class MixtureOfExperts(nn.Module):
    """Each token goes through its `experts_per_token` likeliest experts, weighted by the router's softmax.

    Ranks of a tensor group have a share of every expert, and sum what all experts give at once.
    """

    def __init__(self, shard: Architecture, dtype: torch.dtype, parallel: Parallel = SINGLE) -> None:
        super().__init__()
        a = shard
        self.router = Linear(a.hidden_size, a.num_experts, False, dtype)
        self.experts = nn.ModuleList(
            GatedMLP(a.hidden_size, a.intermediate_size, False, dtype) for _ in range(a.num_experts)
        )
        self._per_token = a.experts_per_token
        self._normalize = a.normalize_expert_weights
        self._parallel = parallel

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """(T, hidden_size) to the same, added to `residual`."""
        weights, chosen = self.router(x).float().softmax(-1).topk(self._per_token, -1)
        if self._normalize:
            weights /= weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype)
        output = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            rows, places = (chosen == index).nonzero(as_tuple=True)
            output.index_add_(0, rows, self.experts[index](x[rows]).mul_(weights[rows, places, None]))
        if self._parallel.tensor_rank == 0:
            output.add_(residual)
        return self.reduce(output)

    def reduce(self, y: Tensor) -> Tensor:
        """As RowParallelLinear.reduce."""
        return self._parallel.all_reduce(y)
