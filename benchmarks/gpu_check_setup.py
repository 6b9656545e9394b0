"""What `make gpu-check` runs and how it tells what it found: sizes, the sections' context, and lines of a report.

A dry run goes through the same code on a CPU with a tiny model, so that a test can; it shows nothing about a GPU.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sarathi.simulation.devices import DEVICES, Device

QWEN3_8B = str(Path(__file__).parent / "configs" / "qwen3-8b")
TINY = {
    "model_type": "qwen3",
    "vocab_size": 199,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Setup:
    """Sizes of a check. Lengths in tokens, times in seconds."""

    device: str  # "cuda", or "cpu" in a dry run
    dtype: str  # of the model whose rounds are timed
    token_model: str  # whose tokens are compared
    token_load_format: str
    round_model: str  # whose rounds are timed; its weights are random
    head_sizes: tuple[tuple[int, int, int], ...]  # query heads, KV heads, head_dim
    num_prompts: int
    num_output_tokens: int
    context: int  # of the decodes of timed rounds
    decode_counts: tuple[int, ...]
    chunks: tuple[int, ...]  # beside `num_decodes_beside` decodes
    num_decodes_beside: int
    repetitions: int
    job: tuple[int, int, int]  # requests of a batch job, prompt tokens, output tokens
    collect_minutes: float
    train_epochs: int
    max_target_tokens: int  # budget of LPRS, within what rounds of predictor.collect's grid local have
    replay: tuple[int, int, int, float]  # requests, least and most prompt tokens, most seconds

    @property
    def is_dry(self) -> bool:
        return self.device == "cpu"


def real_setup() -> Setup:
    return Setup(
        device="cuda",
        dtype="bfloat16",
        token_model="smollm2",
        token_load_format="auto",
        round_model=QWEN3_8B,
        head_sizes=((32, 8, 128), (9, 3, 64), (14, 2, 64)),
        num_prompts=16,
        num_output_tokens=48,
        context=512,
        decode_counts=(10, 32),
        chunks=(256, 512, 1024),
        num_decodes_beside=10,
        repetitions=20,
        job=(64, 128, 128),
        collect_minutes=0.2,
        train_epochs=100,
        max_target_tokens=512,
        replay=(120, 200, 1500, 2.0),
    )


@contextmanager
def dry_setup() -> Iterator[Setup]:
    """Everything tiny, on a CPU."""
    with tempfile.TemporaryDirectory(prefix="sarathi-gpu-check-") as folder:
        Path(folder, "config.json").write_text(json.dumps(TINY))
        yield Setup(
            device="cpu",
            dtype="float32",
            token_model=folder,
            token_load_format="dummy",
            round_model=folder,
            head_sizes=((4, 2, 16),),
            num_prompts=3,
            num_output_tokens=4,
            context=20,
            decode_counts=(2,),
            chunks=(8,),
            num_decodes_beside=2,
            repetitions=2,
            job=(3, 8, 4),
            collect_minutes=0.02,
            train_epochs=2,
            max_target_tokens=64,
            replay=(6, 8, 40, 2.0),
        )


@dataclass
class Report:
    """Lines as they come: facts, and checks that passed or failed."""

    setup: Setup
    num_failed: int = field(default=0, init=False)

    def fact(self, text: str) -> None:
        print(f"     {text}", flush=True)

    def check(self, what: str, passed: bool, found: str) -> None:
        self.num_failed += not passed
        print(f"{'PASS' if passed else 'FAIL'} {what}: {found}", flush=True)

    def timing(self, what: str, passed: bool, found: str) -> None:
        """A check of times, which those of a dry run cannot fail."""
        if self.setup.is_dry:
            self.fact(f"{what}: {found} (not checked in a dry run)")
        else:
            self.check(what, passed, found)


def simulated_twin(device_name: str) -> Device | None:
    """The simulator's device for what torch calls a GPU, as in "NVIDIA GeForce RTX 4090"; None if there is none."""
    name = device_name.lower()
    marks = {
        "rtx_4090": ("rtx 4090",),
        "rtx_5090": ("rtx 5090",),
        "rtx_pro_5000_72gb": ("rtx pro 5000",),
        "rtx_pro_6000": ("rtx pro 6000",),
        "a100_80gb": ("a100", "80gb"),
        "h100": ("h100", "hbm3"),  # SXM; the PCIe card is slower
        "h200": ("h200",),
    }
    return next((DEVICES[twin] for twin, parts in marks.items() if all(part in name for part in parts)), None)
