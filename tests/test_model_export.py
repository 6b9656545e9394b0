"""Exported folders are what transformers loads: weights, tokenizer, chat; nothing half-written is left behind."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")
safetensors_torch = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")

from sarathi.errors import FieldError
from sarathi.model import export as export_module
from sarathi.model.checkpoint import DummyCheckpoint, open_checkpoint
from sarathi.model.export import export_model, main
from sarathi.model.tokenizer import load_tokenizer
from tests.gguf_files import byte_level_vocabulary, model_metadata, model_tensors, write_gguf

CONFIG: dict[str, Any] = {
    "vocab_size": 270,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
}
MERGES = ["h e", "l l", "he ll", "hell o"]


class Origin:
    path = "here"

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config


@pytest.fixture
def gguf_model(tmp_path: Path) -> Path:
    """A tiny random Mixtral with a tokenizer."""
    config = CONFIG | FAMILIES["mixtral"] | {"model_type": "mixtral", "vocab_size": 263}
    tokens = [*byte_level_vocabulary(MERGES), "<s>", "</s>", "<eot>"]
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 260 + [3] * 3,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 260,
        "tokenizer.ggml.eos_token_id": 261,
        "tokenizer.ggml.eot_token_id": 262,
        "tokenizer.chat_template": "{% for m in messages %}{{ bos_token + m['content'] + eos_token }}{% endfor %}",
    }
    weights = model_tensors(DummyCheckpoint(Origin(config), 1).tensors(), config, "llama")
    return write_gguf(tmp_path / "tiny.gguf", model_metadata(config, "llama") | tokenizer, weights)


def config_folder(folder: Path, family: str, **other: Any) -> Path:
    folder.mkdir()
    name = {"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    config = CONFIG | FAMILIES[family] | {"model_type": family, "architectures": [f"{name}ForCausalLM"]} | other
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load_whole(folder: Path, **options: Any) -> Any:
    """transformers' model; fails where a weight is missing or left over."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_each_family(tmp_path: Path, family: str) -> None:
    source = config_folder(tmp_path / "source", family)
    export_model(str(source), tmp_path / "out", load_format="dummy", seed=5)
    assert names_in(tmp_path / "out") == ["config.json", "generation_config.json", "model.safetensors"]
    load_whole(tmp_path / "out")
    exported = dict(open_checkpoint(str(tmp_path / "out"), "auto", 0).tensors())
    weights = dict(open_checkpoint(str(source), "dummy", 5).tensors())
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in weights)


def test_gguf_model_with_its_tokenizer(gguf_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(str(gguf_model), out)
    model, theirs, ours = load_whole(out), transformers.AutoTokenizer.from_pretrained(out), load_tokenizer(str(out))
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == [261, 262]
    assert ours.eos_token_ids == (261, 262)
    original = load_tokenizer(str(gguf_model))
    for text in ("hello 123456 Hello", " it's <s>x</s>", "é<eot>"):
        assert theirs.encode(text) == ours.encode(text) == original.encode(text)
    messages = [{"role": "user", "content": "hello"}]
    assert original.apply_chat_template(messages) == theirs.apply_chat_template(messages, return_dict=False)
    expected = dict(open_checkpoint(str(gguf_model), "auto", 0).tensors())
    assert torch.equal(model.model.embed_tokens.weight, expected["model.embed_tokens.weight"])
    assert torch.equal(
        model.model.layers[1].self_attn.q_proj.weight, expected["model.layers.1.self_attn.q_proj.weight"]
    )


def test_shards_as_transformers_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "MAX_SHARD_BYTES", 40_000)
    source = config_folder(tmp_path / "source", "llama")
    export_model(str(source), tmp_path / "out", load_format="dummy")
    files = [name for name in names_in(tmp_path / "out") if name.endswith(".safetensors")]
    assert files == [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    assert len(files) > 2
    assert all((tmp_path / "out" / name).stat().st_size < 42_000 for name in files)
    model = load_whole(tmp_path / "out")
    weights = dict(open_checkpoint(str(source), "dummy", 0).tensors())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    again = dict(open_checkpoint(str(tmp_path / "out"), "auto", 0).tensors())
    assert again.keys() == weights.keys()


def test_an_exported_folder_exported_again(gguf_model: Path, tmp_path: Path) -> None:
    """What the source says of generation stays; its type of weights does not; a tied head is written once."""
    first = tmp_path / "first"
    export_model(str(gguf_model), first)
    generation = {"eos_token_id": [5, 261], "temperature": 0.6}
    (first / "generation_config.json").write_text(json.dumps(generation))
    config = json.loads((first / "config.json").read_text())
    (first / "config.json").write_text(json.dumps(config | {"dtype": "float32", "tie_word_embeddings": True}))
    export_model(str(first), tmp_path / "second", dtype="bfloat16")
    assert json.loads((tmp_path / "second" / "generation_config.json").read_text()) == generation
    model = load_whole(tmp_path / "second", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert "lm_head.weight" not in safetensors_torch.load_file(tmp_path / "second" / "model.safetensors")
    ours = load_tokenizer(str(tmp_path / "second"))
    assert ours.encode("hello") == load_tokenizer(str(gguf_model)).encode("hello") == [260, 259]
    assert ours.eos_token_ids == (5, 261)


@pytest.mark.parametrize("failing", ["_write_weights", "_write_generation_config"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_half_written_remains(
    gguf_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    def fail(folder: Path, *_: Any) -> None:
        (folder / "part-0").touch()
        raise error

    monkeypatch.setattr(export_module, failing, fail)
    with pytest.raises(type(error)):
        export_model(str(gguf_model), tmp_path / "deep" / "out")
    assert names_in(tmp_path / "deep") == []


def test_a_disk_without_room_is_told(gguf_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from safetensors import SafetensorError

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors_torch, "save_file", full)
    assert main([str(gguf_model), str(tmp_path / "out")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert names_in(tmp_path) == ["tiny.gguf"]


def test_existing_folders(gguf_model: Path, tmp_path: Path) -> None:
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    (full / "x").write_text("precious")
    file.write_text("precious")
    empty.mkdir()
    for taken in (full, file):
        with pytest.raises(FieldError, match="is there already; a new or an empty folder"):
            export_model(str(gguf_model), taken)
    assert ((full / "x").read_text(), file.read_text()) == ("precious", "precious")
    export_model(str(gguf_model), empty)
    assert "config.json" in names_in(empty)
    assert not any(name.startswith(".") for name in names_in(tmp_path))


def test_command(gguf_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main([str(gguf_model), out, "--dtype", "float16"]) == 0
    assert capsys.readouterr().out == f"{gguf_model} written to {out}\n"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float16"
    assert oct(os.stat(out).st_mode & 0o777) == "0o755"
    assert main([str(gguf_model), out]) == 2
    assert main(["no/such/model", str(tmp_path / "other")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in errors] == [True, True]
    with pytest.raises(SystemExit) as caught:
        main([str(gguf_model), out, "--seed", "-1"])
    assert caught.value.code == 2


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("export") / "smollm2"
    try:
        export_model("smollm2", folder, dtype="bfloat16")
    except FieldError as error:
        pytest.skip(str(error))
    yield folder
    shutil.rmtree(folder)


def test_smollm2_for_transformers(smollm2: Path) -> None:
    model = load_whole(smollm2, dtype="auto")
    reference = model.state_dict()
    compared = 0
    for name, tensor in open_checkpoint("smollm2", "auto", 0).tensors():
        if name == "model.embed_tokens.weight" or ".layers.17." in name:
            assert torch.equal(tensor.bfloat16(), reference[name]), name
            compared += 1
    assert compared == 10
    assert torch.equal(reference["lm_head.weight"], reference["model.embed_tokens.weight"])
    assert model.config.max_position_embeddings == 8192


def test_smollm2_tokenizer_for_transformers(smollm2: Path) -> None:
    theirs, ours = transformers.AutoTokenizer.from_pretrained(smollm2), load_tokenizer("smollm2")
    for text in (
        "Hello, world!",
        "at  7 or 12345",
        "<|im_start|>user\nGrüße 日本語<|im_end|>\n",
        "def f(x):\n    return x",
    ):
        ids = theirs.encode(text)
        assert ids == ours.encode(text)
        assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False) == text
    assert (theirs.bos_token, theirs.eos_token, theirs.model_max_length) == ("<|im_start|>", "<|im_end|>", 8192)
    messages = [{"role": "user", "content": "hi"}]
    chat = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert chat == ours.apply_chat_template(messages) == load_tokenizer(str(smollm2)).apply_chat_template(messages)
