"""`python -m sarathi.model.export MODEL FOLDER`: write any model that can be loaded as a Hugging Face folder."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sarathi.config.setting import MAX_SEED

DTYPES = ("float32", "bfloat16", "float16")
MAX_SHARD_BYTES = 5 * 10**9
_OF_OLD_WEIGHTS = ("dtype", "torch_dtype")  # in config.json
INTERRUPTED, BAD_SETTING, CANNOT_WRITE = 130, 2, 1


def export_model(model: str, folder: Path, *, dtype: str = "float32", load_format: str = "auto", seed: int = 0) -> None:
    """Write config.json, generation_config.json, safetensors (in shards of at most 5 GB) and the tokenizer's files.

    Everything is written beside `folder` and renamed at the end, so what is there is whole. Raises FieldError for a
    model that cannot be read and a folder that is there already.
    """
    import torch

    from sarathi.errors import FieldError
    from sarathi.model.architecture import Architecture
    from sarathi.model.checkpoint import find_model, open_checkpoint
    from sarathi.model.tokenizer import load_tokenizer

    folder = folder.resolve()  # "." and links are renamed over as what they stand for
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FieldError("folder", f"{folder} is there already; a new or an empty folder")
    checkpoint = open_checkpoint(model, load_format, seed)
    Architecture.from_config(checkpoint.config, checkpoint.path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        config = {name: value for name, value in checkpoint.config.items() if name not in _OF_OLD_WEIGHTS}
        _write_json(partial / "config.json", config | {"torch_dtype": dtype})
        _write_generation_config(partial, find_model(model), config)
        _write_weights(partial, checkpoint, getattr(torch, dtype))
        if (tokenizer := load_tokenizer(model)) is not None:
            tokenizer.backend.save_pretrained(partial)
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o777 & ~umask)
        for file in partial.iterdir():
            file.chmod(0o666 & ~umask)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_generation_config(folder: Path, source: Path, config: dict[str, Any]) -> None:
    """The source's own, or what its metadata says of the tokens around an answer."""
    from sarathi.model.tokenizer import eos_token_ids

    if (own := source / "generation_config.json").is_file():
        shutil.copyfile(own, folder / own.name)
        return
    eos = list(eos_token_ids(source))
    ids = {"bos_token_id": config.get("bos_token_id"), "eos_token_id": eos[0] if len(eos) == 1 else eos or None}
    _write_json(folder / "generation_config.json", {name: value for name, value in ids.items() if value is not None})


def _write_weights(folder: Path, checkpoint: Any, dtype: Any) -> None:
    """Tensors as they come, a file each time that a shard is full."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tied = checkpoint.config.get("tie_word_embeddings", False)
    shards: list[list[str]] = []
    pending: dict[str, Any] = {}
    size = total = 0

    def flush() -> None:
        nonlocal pending, size
        try:
            save_file(pending, folder / f"part-{len(shards)}", metadata={"format": "pt"})
        except SafetensorError as error:  # what the system refused, without its number
            raise OSError(str(error)) from error
        shards.append(list(pending))
        pending, size = {}, 0

    for name, tensor in checkpoint.tensors():
        if tied and name == "lm_head.weight":
            continue
        tensor = tensor.to(dtype).contiguous()
        if pending and size + tensor.nbytes > MAX_SHARD_BYTES:
            flush()
        pending[name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    flush()
    if len(shards) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return
    weight_map = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"part-{index}").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _seed(text: str) -> int:
    """Of the range that configurations allow."""
    if not text.isdecimal() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; an integer from 0 to {MAX_SEED}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for a model or folder that makes no sense, with one line that says so."""
    from sarathi.errors import FieldError, one_line

    parser = argparse.ArgumentParser(prog="python -m sarathi.model.export", description=__doc__)
    parser.add_argument("model", help="Hugging Face folder, GGUF file, or smollm2")
    parser.add_argument("folder", type=Path, help="folder to write; must be new or empty")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default: %(default)s)")
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto", help="dummy writes random weights")
    parser.add_argument("--seed", type=_seed, default=0, help="of random weights (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        export_model(args.model, args.folder, dtype=args.dtype, load_format=args.load_format, seed=args.seed)
    except FieldError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_SETTING
    except OSError as error:
        print(
            one_line(f"error: cannot write {error.filename or args.folder} ({error.strerror or error})"),
            file=sys.stderr,
        )
        return CANNOT_WRITE
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind", file=sys.stderr)
        return INTERRUPTED
    print(f"{args.model} written to {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
