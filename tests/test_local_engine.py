"""The real engine against transformers: the same greedy tokens at every chunk size, alone or not, preempted or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

import torch

from sarathi.executor.local import LocalExecutor
from sarathi.model import export
from tests import local_engine as real

NUM_TOKENS = 12
LENGTHS = (1, 2, 15, 16, 17, 33, 64, 120)
FULL_LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64, 100, 128, 255, 256, 257, 300, 512, 1000, 2000)
UNCHUNKED = 8192


@pytest.fixture(scope="module")
def parts() -> Any:
    return real.load_parts("smollm2", UNCHUNKED)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    assert export.main(["smollm2", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("family", list(real.TINY))
def test_tiny_models_at_every_chunk_size_and_after_preemption(family: str, tmp_path: Path) -> None:
    reference = real.make_tiny(family, tmp_path)
    prompts = real.random_prompts(LENGTHS, real.SIZES["vocab_size"])
    expected = [real.reference_tokens(reference, prompt, NUM_TOKENS) for prompt in prompts]
    for chunk_size in (1, 16, 17, 256):
        llm = real.make_llm(tmp_path, chunk_size)
        assert [output.token_ids for output in real.greedy(llm, prompts, NUM_TOKENS)] == expected
    alone = [real.greedy(llm, [prompt], NUM_TOKENS)[0].token_ids for prompt in prompts]
    assert alone == expected
    # Ten blocks of 16 for 160 prompt tokens and 200 of output: some lose their KV and are computed again.
    tight = real.make_llm(tmp_path, 64, num_gpu_blocks=10, max_model_len=160, output_dir=str(tmp_path), plots=False)
    long = real.random_prompts([30, 31, 32, 33, 34], real.SIZES["vocab_size"], seed=3)
    outputs = real.greedy(tight, long, 40)
    assert tight.llm_engine.plot_metrics()["num_preemptions"] > 0
    assert [output.token_ids for output in outputs] == [real.reference_tokens(reference, p, 40) for p in long]


def logits_of(llm: real.LLM, prompt: list[int]) -> torch.Tensor:
    """The logits after the prompt, computed in the chunks that the engine takes."""
    engine = llm.llm_engine
    executor = engine.system.executor
    assert isinstance(executor, LocalExecutor)
    worker: Any = executor.worker
    runner = worker._runner
    seen: list[torch.Tensor] = []
    forward = runner.forward

    def keep(batch, hidden):
        logits = forward(batch, hidden)
        seen.extend(logits)
        return logits

    runner.forward = keep
    try:
        real.greedy(llm, [prompt], 1)
    finally:
        runner.forward = forward
    (last,) = seen
    return last


def test_smollm2_gives_transformers_tokens_and_logits(smollm2: Path, parts: Any) -> None:
    reference = real.load_reference(smollm2)
    prompts = real.random_prompts((1, 5, 17, 40, 130), 49152)
    expected = [real.reference_tokens(reference, prompt, 6) for prompt in prompts]
    with torch.inference_mode():
        logits = [reference(torch.tensor([prompt])).logits[0, -1] for prompt in prompts[-2:]]
    for chunk_size in (16, 17, 256):
        llm = real.make_llm("smollm2", chunk_size, parts=parts)
        assert [output.token_ids for output in real.greedy(llm, prompts, 6)] == expected
        for prompt, right in zip(prompts[-2:], logits, strict=True):
            torch.testing.assert_close(logits_of(llm, prompt), right, atol=1e-3, rtol=0)


@pytest.mark.slow
def test_smollm2_twenty_prompts_up_to_2000_tokens(smollm2: Path, parts: Any) -> None:
    reference = real.load_reference(smollm2)
    prompts = real.random_prompts(FULL_LENGTHS, 49152, seed=1)
    expected = [real.reference_tokens(reference, prompt, NUM_TOKENS) for prompt in prompts]
    for chunk_size in (1, 16, 17, 256, UNCHUNKED):
        llm = real.make_llm("smollm2", chunk_size, parts=parts)
        mixed = [output.token_ids for output in real.greedy(llm, prompts, NUM_TOKENS)]
        assert mixed == expected, f"mixed, chunk size {chunk_size}"
        alone = [real.greedy(llm, [prompt], NUM_TOKENS)[0].token_ids for prompt in prompts]
        assert alone == expected, f"alone, chunk size {chunk_size}"
        for prompt in (prompts[4], prompts[12], prompts[-1]):
            with torch.inference_mode():
                logits = reference(torch.tensor([prompt])).logits[0, -1]
            torch.testing.assert_close(logits_of(llm, prompt), logits, atol=1e-3, rtol=0)
