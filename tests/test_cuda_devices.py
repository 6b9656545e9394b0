"""That nothing meets a tensor of another device on a GPU: model, attention and sampler on fake tensors of one.

torch's fake tensors have shapes and devices and no values, and refuse to be mixed. The device is "meta", which stands
for a GPU: a torch built for CPUs knows no other. Experts are chosen by values, so models with experts are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses import fake_tensor

from sarathi.attention.sdpa import SdpaBackend
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import open_checkpoint
from sarathi.model.transformer import load_model
from sarathi.request import SamplingParams
from sarathi.worker import sampler
from sarathi.worker.batch import SamplingInput
from sarathi.worker.cuda_runner import CudaRunner
from sarathi.worker.runner import ModelRunner
from tests.test_attention import make_batch
from tests.test_cuda_runner import CONFIG

GPU = torch.device("meta")
FULL = {"sliding_window": None}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {},
    "qwen3": FULL,
    "qwen2": FULL,
    "llama": FULL | {"rope_scaling": ROPE | {"original_max_position_embeddings": 64}, "attention_bias": True},
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tensors without values: what numpy gives is fake too, and what would come back to the host is made up."""
    from_numpy = torch.from_numpy
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        mode.allow_meta = True
        monkeypatch.setattr(torch, "from_numpy", lambda array: mode.from_tensor(from_numpy(array)))
        monkeypatch.setattr(fake_tensor.FakeTensor, "tolist", lambda self: np.ones(self.shape, int).tolist())
        monkeypatch.setattr(torch, "get_default_device", lambda: GPU)  # torch's own makes a tensor to see
        monkeypatch.setattr(sampler, "_check", lambda best: None)
        monkeypatch.setattr(sampler, "_draw_again_outside_top_p", lambda *args: None)
        yield mode


def load(tmp_path: Path, family: str) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": family} | FAMILIES[family]))
    checkpoint = open_checkpoint(str(tmp_path), "dummy")
    return load_model(checkpoint, Architecture.from_config(checkpoint.config, ""), torch.bfloat16, GPU)


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_stays_on_its_device(gpu, tmp_path, family):
    model = load(tmp_path, family)
    tensors = tensors_of(model)
    assert tensors and all(tensor.device == GPU for tensor in tensors.values()), tensors
    a = model.shard
    pages = [torch.zeros(41, 2, a.num_kv_heads, 4, a.head_dim, dtype=torch.bfloat16, device=GPU) for _ in a.windows]
    batch = make_batch([(1, 5), (3, 9), (4, 4)], 4)
    with torch.inference_mode():
        logits = ModelRunner(model, SdpaBackend(GPU), pages, GPU).forward(batch)
        same = CudaRunner(model, SdpaBackend(GPU), pages, GPU).forward(batch)
    for given in (logits, same):
        assert given.device == GPU and given.shape == (3, a.vocab_size) and given.dtype is torch.float32


def test_sampling_stays_on_its_device(gpu):
    logits = torch.zeros(4, 700, device=GPU)
    draw = sampler.Sampler(700).sample
    assert draw(logits, None) == ([1] * 4, None)
    params = [
        SamplingParams(temperature=0.7, top_k=5, min_p=0.1, top_p=0.9, logprobs=2),
        SamplingParams(temperature=1.0, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.3),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0, logprobs=0),
    ]
    token_ids, logprobs = draw(logits, [SamplingInput(p, 1, 0, (1, 2), (3, 3), (5,)) for p in params])
    assert token_ids == [1] * 4
    assert [entry is not None for entry in logprobs or []] == [True, False, False, True]


def test_the_check_sees_a_mixture(gpu):
    with pytest.raises(RuntimeError, match="on the same device"):
        _ = torch.zeros(2, device=GPU) + torch.zeros(2)
