"""Reads back what wandb wrote offline: the records of a .wandb file, a log in LevelDB's format of protobuf messages."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class OfflineRun(NamedTuple):
    run: Any  # protobuf's RunRecord: project, run_group, display_name, run_id, sweep_id, tags
    config: dict[str, Any]
    history: list[dict[str, Any]]  # a step each, `_step` among its keys
    summary: dict[str, Any]
    exit_code: int | None  # None: never finished
    folder: Path


def read_offline_run(directory: Path) -> OfflineRun:
    """The one offline run below `directory`."""
    from wandb.proto import wandb_internal_pb2

    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    run, config, history, summary, exit_code = None, {}, [], {}, None
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= items(record.run.config.update)
        elif kind == "config":
            config |= items(record.config.update)
        elif kind == "history":
            history.append(items(record.history.item))
        elif kind == "summary":
            summary |= items(record.summary.update)
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return OfflineRun(run, config, history, summary, exit_code, file.parent)


def items(pairs: Any) -> dict[str, Any]:
    return {pair.key or "/".join(pair.nested_key): json.loads(pair.value_json) for pair in pairs}


def records(data: bytes) -> Iterator[bytes]:
    """Records are cut into pieces that do not cross the blocks; a block's last bytes may be padding."""
    assert data[:4] == b":W&B"
    place, record = HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        record += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            yield record
            record = b""
