"""A local engine for tests that need no model: a worker that computes nothing, on the real clock."""

from __future__ import annotations

import time

from sarathi.config import EndpointConfig
from sarathi.core.plan import MemoryStats
from sarathi.executor.local import LocalExecutor, LocalParts
from sarathi.simulation.models import load_model_shape
from sarathi.worker.batch import Batch, WorkerOutput
from sarathi.worker.message import BatchBuilder, RoundMessage

ROUND_TIME = 0.0005
NUM_SPECIAL = 3


class FakeTokenizer:
    """A token for each letter, its place in the alphabet; the first ids are special."""

    vocab_size = 200
    eos_token_ids = (0,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [NUM_SPECIAL + ord(letter) % 100 for letter in text]
        return [0, *ids] if add_special_tokens else ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(token_id) for token_id in ids if token_id >= NUM_SPECIAL or not skip_special_tokens)


class FakeWorker:
    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._builder = BatchBuilder()

    def execute(self, message: RoundMessage) -> WorkerOutput:
        batch = self._builder.build(message)
        self.batches.append(batch)
        time.sleep(ROUND_TIME)
        return WorkerOutput([7] * len(batch.output_rows), None, ROUND_TIME, MemoryStats(100.0, 900.0, 50.0, 60.0))


class FakeLoader:
    """Stands in for `build_local`; keeps what it was asked and what it gave."""

    def __init__(self, has_tokenizer: bool = True) -> None:
        self.asked: list[tuple[EndpointConfig, int]] = []
        self.worker = FakeWorker()
        self.tokenizer = FakeTokenizer() if has_tokenizer else None

    def __call__(self, config: EndpointConfig, max_num_seqs: int) -> LocalParts:
        self.asked.append((config, max_num_seqs))
        return LocalParts(
            config=config,
            make_executor=lambda clock: LocalExecutor(self.worker, 0, clock),
            model=load_model_shape(config.model_config.model),
            tokenizer=self.tokenizer,  # pyright: ignore[reportArgumentType]
            num_blocks=config.cache_config.num_gpu_blocks or 2000,
            eos_token_ids=(0,),
            device="cpu",
            dtype_bytes=4,
            notes=["a fake model on cpu"],
        )

    def prompts(self) -> list[list[int]]:
        """Token ids of each chunk with more than one token, in order."""
        return [
            batch.token_ids[start:end].tolist()
            for batch in self.worker.batches
            for start, end in zip(batch.query_starts[:-1], batch.query_starts[1:], strict=True)
            if end - start > 1
        ]
