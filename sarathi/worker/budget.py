"""What a rank's weights, rounds and KV blocks take of its memory, and whether they fit. Allocates nothing."""

from __future__ import annotations

import torch

from sarathi.errors import FieldError
from sarathi.simulation.models import ModelShape
from sarathi.worker.memory import GIB
from sarathi.worker.parallel import Parallel


class MemoryBudget:
    """One rank's memory. Bytes throughout; errors are FieldErrors that tell both sizes.

    Args:
        available: bytes that are free before anything is loaded.
        utilization: share of them that weights, activations and KV blocks may take.
    """

    def __init__(
        self,
        shape: ModelShape,
        parallel: Parallel,
        dtype: torch.dtype,
        device: torch.device,
        *,
        block_size: int,
        available: int,
        utilization: float,
    ) -> None:
        self.available = available
        self.utilization = utilization
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._block_size = block_size
        sizes = parallel.tensor_size, parallel.num_stages
        self.block_bytes = block_size * shape.kv_bytes_per_token(*sizes, dtype.itemsize)
        self.weight_bytes = shape.weight_bytes(*sizes, parallel.stage, dtype.itemsize)
        if shape.tied_embeddings and parallel.num_stages == 1 and device.type == "cpu":  # the packed LM head is a copy
            self.weight_bytes += shape.embedding_params(parallel.tensor_size) * dtype.itemsize

    def check_weights(self) -> None:
        if self.weight_bytes > self.available:
            raise FieldError(
                "model",
                f"{self._shape.name} needs {self.weight_bytes / GIB:.1f} GiB for its weights in "
                f"{str(self._dtype).removeprefix('torch.')}; {self.available / GIB:.1f} GiB are available on "
                f"{self._device}; take a smaller model or dtype",
            )

    def activation_bytes(self, num_tokens: int, num_seqs: int) -> int:
        """An estimate: the widest layer's inputs and outputs, and logits with the sampler's copies in float32.

        Of the whole model: what a rank of several has less of is little beside weights and pages.
        """
        shape = self._shape
        ffn = max(shape.intermediate_size, shape.moe_intermediate_size * max(1, shape.experts_per_token))
        widest = 4 * shape.hidden_size + 3 * ffn + (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        return num_tokens * widest * self._dtype.itemsize + 6 * 4 * num_seqs * shape.vocab_size

    def kv_room(self, activations: int) -> int:
        """Bytes of the share that are left for KV blocks; may be negative."""
        return int(self.available * self.utilization) - self.weight_bytes - activations

    def num_blocks(self, room: int, activations: int, most: int) -> int:
        """KV blocks that fit in `room`, at most `most`. Raises FieldError of gpu_memory_utilization for none."""
        num_blocks = min(room // self.block_bytes, most)
        if num_blocks < 1:
            raise FieldError(
                "gpu_memory_utilization",
                f"{self.utilization:g} of the {self.available / GIB:.2f} GiB available leaves no KV block: "
                f"weights take {self.weight_bytes / GIB:.2f} GiB, activations {activations / GIB:.2f} GiB and a "
                f"block {self.block_bytes / GIB:.4f} GiB; raise it, or take a smaller model, chunk_size or "
                "max_num_seqs",
            )
        return num_blocks

    def check_blocks(self, num_blocks: int, num_tokens: int, num_seqs: int, free: int | None = None) -> None:
        """Raise FieldError of num_gpu_blocks, or of model, where so many do not fit beside such rounds.

        `free`: bytes, where it was measured what is left beside weights.
        """
        activations = self.activation_bytes(num_tokens, num_seqs)
        size = num_blocks * self.block_bytes
        free = (self.available - self.weight_bytes if free is None else free) - activations
        if free < self.block_bytes:
            raise FieldError(
                "model",
                f"rounds of {num_tokens:,} tokens and {num_seqs:,} sequences need {activations / GIB:.2f} GiB "
                f"for activations, weights {self.weight_bytes / GIB:.2f} GiB; {self.available / GIB:.2f} GiB are "
                "available; take a smaller chunk_size, max_num_seqs or model",
            )
        if size > free:
            raise FieldError(
                "num_gpu_blocks",
                f"{num_blocks} blocks of {self._block_size} tokens need {size / GIB:.2f} GiB; {free / GIB:.2f} "
                f"GiB are left beside weights and activations; at most {free // self.block_bytes}, or a "
                "smaller block_size or dtype",
            )
