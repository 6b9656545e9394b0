"""GGUF files as a format: metadata, and tensors dequantised by the `gguf` package. Knows no model.

Files are read here rather than by the package's own reader, which takes two seconds for a vocabulary of 49,152 tokens
and takes cut-off files for whole ones. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md is the format.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from sarathi.errors import FieldError, one_line, shown

T = TypeVar("T")

KINDS = (
    Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K,
    Kind.Q6_K,
)  # fmt: skip
_FLOATS = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_STRING, _ARRAY, _BOOL, _FLOAT32 = 8, 9, 7, 6
# Value types of metadata that are numbers, little-endian.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", _FLOAT32: "<f4", _BOOL: "<u1", 10: "<u8", 11: "<i8",
    12: "<f8",
}  # fmt: skip
_U64 = struct.Struct("<Q")


class GgufTensor(NamedTuple):
    """Where a tensor lies. `shape` is as torch has it: rows first, GGUF's own order turned round."""

    kind: Kind
    shape: tuple[int, ...]
    start: int  # byte in the file
    num_bytes: int


class GgufFile:
    """Metadata by key and tensors by name, of a file that stays mapped, not read, until a tensor is asked for.

    Raises FieldError of `model`, in one line, for a file that is damaged, cut off or of a kind not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        try:
            with open(path, "rb") as file:
                if file.read(4) != b"GGUF":
                    raise FieldError("model", f"{path} is no GGUF file")
            self._data = np.memmap(path, mode="r")
        except OSError as error:
            raise FieldError("model", f"{path} cannot be read ({error.strerror or error})") from error
        try:
            self.metadata, self.tensors = _parse(self._data.data)
        except (ValueError, OverflowError, struct.error) as error:  # UnicodeDecodeError is a ValueError
            raise FieldError(
                "model", f"{path} is a damaged or unsupported GGUF file: {one_line(str(error))}"
            ) from error
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise FieldError("model", f"{path} is one part of a split GGUF file; merge the parts into one file")

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A metadata value that must be of `kind`; FieldError where it is not, or is missing and has no default."""
        value = self.metadata.get(key, default)
        if value is None:
            raise FieldError("model", f"{self.path} lacks the metadata {key}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FieldError("model", f"{self.path}: {key} {shown(value)} is not allowed; of type {kind.__name__}")
        return value

    def tensor(self, name: str, index: int | None = None) -> Tensor:
        """A tensor in memory of its own: dequantised to float32, or in the 16-bit float type that it is stored in.

        `index` takes one slice of the first dimension alone.
        """
        kind, shape, start, num_bytes = self.tensors[name]
        if index is not None:
            num_bytes //= shape[0]
            shape, start = shape[1:], start + index * num_bytes
        raw = self._data[start : start + num_bytes]
        if kind in _FLOATS:
            return torch.from_numpy(np.array(raw)).view(_FLOATS[kind]).view(shape)
        rows = raw.reshape(*shape[:-1], num_bytes // math.prod(shape[:-1]))
        return torch.from_numpy(gguf.dequantize(rows, kind))


def _parse(data: memoryview) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """Metadata and tensors. Raises ValueError or struct.error for what is not as the format has it."""
    cursor = _Cursor(data)
    cursor.position = 4
    version = cursor.integer("<I")
    if version not in _VERSIONS:
        endian = " (of a big-endian machine)" if version and not version & 0xFFFF else ""
        raise ValueError(f"version {version}{endian} is not supported; 2 or 3")
    num_tensors, num_values = cursor.integer("<Q"), cursor.integer("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.integer("<I"))
    entries = [_tensor_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0:
        raise ValueError(f"general.alignment {shown(alignment)} is not allowed; a positive integer")
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, (kind, shape, offset, num_bytes) in entries:
        if name in tensors:
            raise ValueError(f"tensor {shown(name)} is there twice")
        if base + offset + num_bytes > len(data):
            raise ValueError(
                f"it is cut off: tensor {shown(name)} ends at byte {base + offset + num_bytes:,} of {len(data):,}"
            )
        tensors[name] = GgufTensor(kind, shape, base + offset, num_bytes)
    return metadata, tensors


def _tensor_entry(cursor: _Cursor) -> tuple[str, GgufTensor]:
    """Name and place of a tensor; its start counts from the beginning of the data section."""
    name = cursor.string()
    num_dims = cursor.integer("<I")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise ValueError(f"tensor {shown(name)} has {num_dims} dimensions; 1 to {_MAX_DIMS}")
    shape = tuple(cursor.integer("<Q") for _ in range(num_dims))[::-1]
    number = cursor.integer("<I")
    kind = next((kind for kind in KINDS if kind == number), None)
    if kind is None:
        known = {k.value: k.name for k in Kind}.get(number, number)
        allowed = ", ".join(kind.name for kind in KINDS)
        raise ValueError(f"tensor {shown(name)} is of type {known}, which is not supported; one of {allowed}")
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block or not math.prod(shape):
        raise ValueError(f"tensor {shown(name)} has the shape {shape}; rows of a multiple of {block} for {kind.name}")
    return name, GgufTensor(kind, shape, cursor.integer("<Q"), math.prod(shape) // block * block_bytes)


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def integer(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self.position)
        self.position += struct.calcsize(form)
        return value

    def string(self) -> str:
        return self._strings(1)[0]

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, count = self.integer("<I"), self.integer("<Q")
            if kind == _ARRAY:
                raise ValueError("metadata holds a list of lists")
            return self._strings(count) if kind == _STRING else self._numbers(kind, count)
        return self._numbers(kind, 1)[0]

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise ValueError(f"metadata holds a value of unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        if count * dtype.itemsize > len(self._data) - self.position:
            raise ValueError(f"it is cut off: {count:,} values do not fit into it")
        array = np.frombuffer(self._data, dtype, count, self.position)
        self.position += array.nbytes
        if kind == _BOOL:
            return array.astype(bool).tolist()
        if kind == _FLOAT32:  # the shortest decimal: 1e-05 was written, not 9.999999747378752e-06
            return [float(str(value)) for value in array]
        return array.tolist()

    def _strings(self, count: int) -> list[str]:
        data, length, position = self._data, len(self._data), self.position
        unpack = _U64.unpack_from
        strings = []
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > length:
                raise ValueError("it is cut off within its metadata")
            strings.append(str(data[start:position], "utf-8"))
        self.position = position
        return strings
