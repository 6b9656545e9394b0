"""Which of several schedulers' settings a model is loaded for that serves them all."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from sarathi import config as c
from sarathi.errors import FlagError
from sarathi.executor import local
from sarathi.system import load_shared_parts

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 1000,
}  # fmt: skip
CHUNKS = c.SarathiSchedulerConfig(chunk_size=512)
DYNAMIC = c.SarathiSchedulerConfig(
    chunk_size=256,
    enable_dynamic_chunking_schedule=True,
    low_chunk_size=64,
    high_chunk_size=900,
    chunk_schedule_max_tokens=1000,
    chunk_schedule_stages=2,
)
LONG_CHUNKS = c.SarathiSchedulerConfig(chunk_size=2000)
PROMPTS, LONG_ROUNDS = c.OrcaSchedulerConfig(), c.VllmSchedulerConfig(max_batched_tokens=4000)


@pytest.mark.parametrize(
    ("schedulers", "expected"),
    [
        ([CHUNKS, DYNAMIC], DYNAMIC),
        ([PROMPTS, DYNAMIC], PROMPTS),
        ([PROMPTS, LONG_CHUNKS], LONG_CHUNKS),
        ([LONG_CHUNKS, PROMPTS, LONG_ROUNDS], LONG_ROUNDS),
    ],
)
def test_longest_rounds_of_all(schedulers, expected, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = c.ModelConfig(model=str(tmp_path), load_format="dummy")
    configs = [c.SystemConfig(model_config=model, scheduler_config=scheduler) for scheduler in schedulers]
    loaded = []
    monkeypatch.setattr(local, "build_local", lambda config, max_num_seqs: loaded.append(config.scheduler_config))
    load_shared_parts(configs)
    assert loaded == [expected]


def test_a_model_that_is_not_there(tmp_path):
    model = c.ModelConfig(model=str(tmp_path / "none"))
    configs = [c.SystemConfig(model_config=model, scheduler_config=scheduler) for scheduler in (CHUNKS, DYNAMIC)]
    with pytest.raises(FlagError, match="model_config_model"):
        load_shared_parts(configs)
