"""Reports as they lie under results, for what collects them. Knows no table but by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from benchmarks.harness.report import CLAIM_COLUMNS, VERDICT
from benchmarks.harness.statistics import REPRODUCED, Verdict

TABLES = tuple(f"table{i}" for i in range(3, 11))
FIGURES = tuple(f"figure{i}" for i in range(2, 7))
ORDER = (*TABLES, *FIGURES, "sweep")
PARTS_OF = {"text": ("text",), "list": ("heading", "items"), "table": ("heading", "columns", "rows", "note"),
            "figure": ("file", "caption")}  # fmt: skip
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
        return [Claim(*row) for block in self.blocks if block.get("heading") == VERDICT for row in block["rows"]]

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
    which is none."""
    reports = [_read(path) for path in sorted((results / backend).glob("*.json"))]
    return sorted(reports, key=lambda r: (ORDER.index(r.name) if r.name in ORDER else len(ORDER), r.name))


def _read(path: Path) -> Written:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        blocks = data["blocks"]
        complete = all(block.keys() >= {*PARTS_OF[block["kind"]]} for block in blocks)
        judged = [block for block in blocks if block.get("heading") == VERDICT]
        known = all(tuple(block["columns"]) == CLAIM_COLUMNS for block in judged) and all(
            len(row) == len(CLAIM_COLUMNS) and row[-1] in VERDICTS for block in judged for row in block["rows"]
        )
        if data["name"] != path.stem or not (complete and known):
            raise ValueError
        return Written(path, data["name"], data["title"], data["notice"], data["headlines"], blocks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise SystemExit(f"{path} is not a report of these benchmarks; remove it, or make it again") from None
