"""Reports as they lie under results, for what collects them. Knows no table but by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from benchmarks.harness.report import CLAIM_COLUMNS, VERDICT
from benchmarks.harness.statistics import REPRODUCED, Verdict
from sarathi.errors import InputError, shown

TABLES = tuple(f"table{i}" for i in range(3, 11))
FIGURES = tuple(f"figure{i}" for i in range(2, 7))
ORDER = (*TABLES, *FIGURES, "sweep")
TEXTS_OF = {"text": ("text",), "list": ("heading",), "table": ("heading", "note"), "figure": ("file", "caption")}
LISTS_OF = {"list": ("items",), "table": ("columns",)}  # of texts
PNG = b"\x89PNG\r\n\x1a\n"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Claim(NamedTuple):
    """A row of the table of verdicts."""

    reading: str
    claim: str
    paper: str
    ours: str
    verdict: Verdict


@dataclass(frozen=True)
class Written:
    """A report that was written; `blocks` are its parts in reading order."""

    path: Path
    name: str
    title: str
    notice: str
    headlines: Sequence[str]
    blocks: Sequence[Mapping[str, Any]]

    @property
    def claims(self) -> Sequence[Claim]:
        tables = [block for block in self.blocks if block["kind"] == "table" and block["heading"] == VERDICT]
        return [Claim(*row) for table in tables for row in table["rows"]]

    @property
    def by_reading(self) -> Mapping[str, Sequence[Verdict]]:
        """The verdicts of each reading."""
        verdicts: dict[str, list[Verdict]] = {}
        for claim in self.claims:
            verdicts.setdefault(claim.reading, []).append(claim.verdict)
        return verdicts

    @property
    def held(self) -> tuple[int, int]:
        """How many of the paper's claims come out in some reading, and of how many that are judged in any."""
        judged = {claim.claim for claim in self.claims}
        return len({claim.claim for claim in self.claims if claim.verdict == REPRODUCED}), len(judged)


def read_reports(results: Path, backend: str) -> list[Written]:
    """All reports of a backend, in the paper's order, what else there is last. Exits with a line that names the file
    which is none, and what is wrong with it."""
    reports = [_read(path) for path in sorted((results / backend).glob("*.json"))]
    return sorted(reports, key=lambda r: (ORDER.index(r.name) if r.name in ORDER else len(ORDER), r.name))


def read_png(path: Path) -> bytes:
    """A figure of a report."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError):  # the latter of a name that no file can have
        raise InputError(f"{path}, a figure of a report, is missing: make it again") from None
    if not content.startswith(PNG):
        raise InputError(f"{path}, a figure of a report, is no PNG: make it again")
    return content


def _read(path: Path) -> Written:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        data, fault = {}, str(error)
    else:
        fault = _fault(data, path.stem)
    if fault:
        raise InputError(f"{path} is not a report of these benchmarks ({fault}); remove it, or make it again")
    return Written(path, data["name"], data["title"], data["notice"], data["headlines"], data["blocks"])


def _fault(data: Any, name: str) -> str:
    """What makes it no report of that name, if anything does."""
    if not isinstance(data, dict):
        return "no object"
    if data.get("name") != name:
        return "another name"
    for key in ("title", "notice"):
        if not isinstance(data.get(key), str):
            return f"{key} is no text"
    if not _are_texts(data.get("headlines")):
        return "headlines are no texts"
    if not isinstance(data.get("blocks"), list):
        return "blocks are no list"
    faults = ((i, _fault_of_block(block)) for i, block in enumerate(data["blocks"]))
    return next((f"block {i}: {fault}" for i, fault in faults if fault), "")


def _fault_of_block(block: Any) -> str:
    kind = block.get("kind") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in TEXTS_OF:
        return "no such kind"
    for key in TEXTS_OF[kind]:
        if not isinstance(block.get(key), str):
            return f"{key} is no text"
    for key in LISTS_OF.get(kind, ()):
        if not _are_texts(block.get(key)):
            return f"{key} are no texts"
    if kind != "table":
        return ""
    columns, rows = block["columns"], block.get("rows")
    if not isinstance(rows, list) or not all(_are_texts(row) and len(row) == len(columns) for row in rows):
        return "rows are not of a text for each column"
    if block["heading"] == VERDICT:
        if tuple(columns) != CLAIM_COLUMNS:
            return "verdicts have other columns"
        if unknown := [row[-1] for row in rows if row[-1] not in VERDICTS]:
            return f"{shown(unknown[0])} is no verdict"
    return ""


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
