"""Ranks of a tiny model in processes of their own, for tests; loads nothing that they do not need."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Container, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sarathi.attention.sdpa import SdpaBackend
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import Checkpoint, DummyCheckpoint, open_checkpoint
from sarathi.model.transformer import DecoderModel, load_model
from sarathi.worker.batch import Batch
from sarathi.worker.parallel import Parallel, PeerError, connect

BLOCK_SIZE = 16
SIZES: dict[str, Any] = {
    "vocab_size": 199,  # neither 2 nor 4 divides it
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16}
WINDOWED = {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama, biased": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "qwen2, windows in some layers": {"model_type": "qwen2", **WINDOWED},
    "qwen3, tied": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS},
}
LAYOUTS = [(2, 2), (4, 1), (1, 4)]  # tensor ranks, stages; 4 tensor ranks share 2 KV heads


class RandomCheckpoint:
    """Weights far from uniform, so that greedy tokens do not hang on rounding, and norms that are not 1."""

    def __init__(self, name: str) -> None:
        self.path, self.config = name, SIZES | CONFIGS[name]
        self._origin = DummyCheckpoint(self, 0)

    def tensors(self, skip: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._origin.tensors(skip):
            is_norm = name.endswith("norm.weight")
            yield name, tensor + 0.5 * torch.linspace(0, 1, len(tensor)) if is_norm else 10 * tensor


def load(checkpoint: Checkpoint, parallel: Parallel) -> DecoderModel:
    architecture = Architecture.from_config(checkpoint.config, checkpoint.path)
    return load_model(checkpoint, architecture, torch.float32, "cpu", parallel)


def make_batch(chunks: Sequence[tuple[int, Sequence[int]]], lengths: np.ndarray, num_blocks: int) -> Batch:
    """A round of (sequence, its next tokens); `lengths`, tokens that each has already, are moved on."""
    seqs = [seq for seq, _ in chunks]
    sizes = np.array([len(tokens) for _, tokens in chunks])
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    positions = np.concatenate([lengths[seq] + np.arange(len(tokens)) for seq, tokens in chunks])
    lengths[seqs] += sizes
    return Batch(
        token_ids=np.array([token for _, tokens in chunks for token in tokens], np.int64),
        positions=positions,
        query_starts=starts,
        context_lens=lengths[seqs].astype(np.int32),
        block_tables=np.array([range(seq * num_blocks, (seq + 1) * num_blocks) for seq in seqs], np.int32),
        output_rows=starts[1:].astype(np.int64) - 1,
        output_seqs=np.arange(len(seqs)),
        sampling=None,
    )


class Rank:
    """A rank's model and pages, enough for `num_blocks` blocks."""

    def __init__(self, checkpoint: Checkpoint, parallel: Parallel, num_blocks: int) -> None:
        self.model = load(checkpoint, parallel)
        self.parallel = parallel
        self.attention = SdpaBackend()
        shard = self.model.shard
        pages = (num_blocks, 2, shard.num_kv_heads, BLOCK_SIZE, shard.head_dim)
        self.pages = [torch.zeros(pages) for _ in range(shard.num_layers)]

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor | None:
        """Logits, where this is the rank that has them."""
        parallel, shard = self.parallel, self.model.shard
        given = torch.from_numpy(batch.token_ids)
        if not parallel.is_first_stage:
            given = parallel.receive((batch.num_tokens, shard.hidden_size), torch.float32, given.device)
        self.attention.begin_round(batch)
        rows, positions = torch.from_numpy(batch.output_rows), torch.from_numpy(batch.positions)
        result = self.model(given, positions, self.pages, self.attention, rows)
        if parallel.is_last_stage:
            return result
        parallel.send(result)
        return None


def open_named(name: str) -> Checkpoint:
    return RandomCheckpoint(name) if name in CONFIGS else open_checkpoint(name)


def check_messages(parallel: Parallel) -> None:
    """What no round of this test has: nothing to gather, tokens for all, 16-bit numbers."""
    joined = parallel.gather_last_dim(torch.empty(0, 3))
    assert (joined is None) == (parallel.tensor_rank > 0)
    assert joined is None or joined.shape == (0, 3 * parallel.tensor_size)
    token_ids = [] if parallel.tensor_rank else [7, 49151]
    assert parallel.broadcast_tokens(token_ids, 2, torch.device("cpu")) == [7, 49151]
    x = torch.full((5, 3), 1.0 + parallel.tensor_rank, dtype=torch.bfloat16)
    assert parallel.all_reduce(x) is x
    assert torch.equal(x, torch.full_like(x, sum(range(1, parallel.tensor_size + 1))))


def run_layouts(
    rank: int, folder: Path, rounds: dict[str, list[Batch]], num_blocks: int, layouts: list[tuple[int, int]]
) -> None:
    """Every model in every layout that this rank is part of; logits are left in `folder`."""
    torch.set_num_threads(1)
    for tensor_size, num_stages in layouts:
        layout = f"{tensor_size}x{num_stages}"
        parallel = connect(rank, tensor_size, num_stages, f"file://{folder}/{layout}", torch.device("cpu"), 60)
        for name, batches in rounds.items():
            part = Rank(open_named(name), parallel, num_blocks)
            logits = [part.run(batch) for batch in batches]
            if parallel.is_last_stage and parallel.tensor_rank == 0:
                torch.save(logits, folder / f"{name} {layout}.pt")
            else:
                assert logits == [None] * len(batches)
        check_messages(parallel)
        torch.distributed.barrier()  # whoever closes takes back what has not arrived
        parallel.close()


def run_layouts_and_die(rank: int, folder: Path, rounds: dict[str, list[Batch]], num_blocks: int) -> None:
    """As `run_layouts` in LAYOUTS; then rank 0 of 2 x 2 is killed before its third round.

    The others leave their error in `folder`, and the seconds until it came.
    """
    run_layouts(rank, folder, rounds, num_blocks, LAYOUTS)
    parallel = connect(rank, 2, 2, f"file://{folder}/dying", torch.device("cpu"), 60)
    name, batches = next(iter(rounds.items()))
    part = Rank(open_named(name), parallel, num_blocks)
    torch.distributed.barrier()
    started = time.perf_counter()
    try:
        for index, batch in enumerate(batches):
            if index == 2 and rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            part.run(batch)
    except PeerError as error:
        (folder / f"error-{rank}").write_text(f"{time.perf_counter() - started:.2f} {error}")
    parallel.close()


def start(target: Callable[..., None], num_ranks: int, *arguments: Any) -> Sequence[BaseProcess]:
    """A process for each rank, which runs `target(rank, *arguments)`."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=(rank, *arguments)) for rank in range(num_ranks)]
    for process in processes:
        process.start()
    return processes


def join(processes: Sequence[BaseProcess], timeout: float = 120.0) -> list[int | None]:
    """Their exit codes; None for one that did not end by itself."""
    end = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes
