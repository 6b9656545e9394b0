"""A table of the paper beside ours: what is assumed, tables, figures and verdicts, as Markdown, JSON and CSV.

What is printed is the Markdown; the JSON is what the index of all tables is made of. Knows no runs.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.options import Options
from benchmarks.harness.statistics import LEAST, NOT_REPRODUCED, PARTLY, REPRODUCED, Verdict
from sarathi.metrics.sinks import write_text

NOTICES = {
    "sim": "SIMULATED: no GPU ran; round times come from a formula, in virtual time.",
    "cpu": "REAL: SmolLM2-135M on this machine's CPU, real clock; figures move with the machine's speed.",
    "cuda": "REAL: on this machine's CUDA device, real clock.",
}
VERDICT = "Verdict"  # heading of the table of claims
LEGEND = (
    f"Of a change, {REPRODUCED}: of the paper's sign beyond the interval, and half to twice its size; below {LEAST:g} "
    f"% it is none. Of figures: within the tolerance that the claim states; {PARTLY}: within a factor of 2, or what "
    "stands there."
)
CLAIM_COLUMNS = ("reading", "the paper's claim", "paper", "ours", "verdict")
NUMBER = re.compile(r"[-+−]?\d[\d,]*(\.\d+)?( ± \d[\d,]*(\.\d+)?)?( (%|s|ms|points))?")
Cell = str | int | float | None


class Report:
    """Collects the parts of one table in reading order; `finish` writes and prints them."""

    def __init__(self, name: str, title: str, options: Options, notice: str = "") -> None:
        """`notice`: what stands at its head of how real the figures are, where that is not the backend's."""
        self.name = name
        self._directory = options.directory
        reduced = " REDUCED SIZE: the figures mean nothing." if options.quick else ""
        self._notice = (notice or NOTICES[options.backend]) + reduced
        self._title = title
        self._blocks: list[dict[str, Any]] = []
        self._claims: list[list[str]] = []
        self._headlines: list[str] = []
        self._directory.mkdir(parents=True, exist_ok=True)

    def path(self, suffix: str) -> Path:
        """A file of this report's: `<name><suffix>`."""
        return self._directory / f"{self.name}{suffix}"

    def add_text(self, text: str) -> None:
        """A paragraph."""
        self._blocks.append({"kind": "text", "text": " ".join(text.split())})

    def add_list(self, heading: str, items: Iterable[str]) -> None:
        self._blocks.append({"kind": "list", "heading": heading, "items": [" ".join(item.split()) for item in items]})

    def add_table(self, heading: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], note: str = "") -> None:
        """Cells are texts as they shall stand, or numbers, shown with two digits; None is a dash."""
        texts = [[_text(cell) for cell in row] for row in rows]
        assert all(len(row) == len(columns) for row in texts), (columns, texts)
        self._blocks.append(
            {"kind": "table", "heading": heading, "columns": [*columns], "rows": texts, "note": " ".join(note.split())}
        )

    def add_figure(self, path: Path, caption: str) -> None:
        self._blocks.append({"kind": "figure", "file": path.name, "caption": caption})

    def add_claim(self, claim: str, paper: str, ours: str, verdict: Verdict, reading: str = "") -> None:
        """What the paper says, the figures of both, and the verdict that they give, in a `reading` of the setup."""
        self._claims.append([reading, claim, paper, ours, verdict])

    def add_check(self, claim: str, paper: str, ours: str, holds: bool, reading: str = "") -> None:
        """A claim that holds or does not."""
        self.add_claim(claim, paper, ours, REPRODUCED if holds else NOT_REPRODUCED, reading)

    def add_headline(self, text: str) -> None:
        """A sentence, with its figures, of what a reader of one line should know; `make headline` collects them."""
        self._headlines.append(" ".join(text.split()))

    def write_csv(self, suffix: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """`rows` as a CSV file beside the report; a cell that a row lacks is empty."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path = self.path(suffix)
        write_text(path, text.getvalue())
        return path

    def finish(self) -> None:
        """Write `<name>.md` and `<name>.json`, and print the former. What came out stands first: headlines, then the
        verdicts, then the assumptions and the tables."""
        if self._claims:
            self.add_table(VERDICT, CLAIM_COLUMNS, self._claims, note=_tally(self._claims))
            self._blocks.insert(0, self._blocks.pop())
        report = {
            "name": self.name,
            "title": self._title,
            "notice": self._notice,
            "headlines": self._headlines,
            "blocks": self._blocks,
        }
        markdown = "\n".join(_markdown(report))
        write_text(self.path(".json"), json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        write_text(self.path(".md"), markdown)
        print(markdown)


def _tally(claims: Sequence[Sequence[str]]) -> str:
    """How many claims hold in each reading; the shape is reproduced if in some reading all do."""
    verdicts: dict[str, list[str]] = {}
    for reading, *_, verdict in claims:
        verdicts.setdefault(reading, []).append(verdict)
    counts = {reading: (of.count(REPRODUCED), len(of)) for reading, of in verdicts.items()}
    whole = [reading for reading, (held, of) in counts.items() if held == of]
    if not whole:
        shape = "Shape not reproduced as a whole"
    else:
        shape = "Shape reproduced" + (f" in the reading {whole[0]}" if whole[0] else "")
    claims_of = "; ".join(
        f"{reading + ': ' if reading else ''}{held} of {of}" for reading, (held, of) in counts.items()
    )
    return f"{shape}. Claims reproduced: {claims_of}. {LEGEND}"


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:,.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


def _markdown(report: Mapping[str, Any]) -> Iterable[str]:
    yield from (f"## {report['title']}", "", f"**{report['notice']}**", "")
    if report["headlines"]:
        yield from (" ".join(report["headlines"]), "")
    for block in report["blocks"]:
        if block.get("heading"):
            yield from (f"### {block['heading']}", "")
        match block["kind"]:
            case "text":
                yield block["text"]
            case "list":
                yield from (f"- {item}" for item in block["items"])
            case "table":
                yield from _markdown_table(block["columns"], block["rows"])
                if block["note"]:
                    yield from ("", block["note"])
            case "figure":
                yield f"![{block['caption']}]({block['file']})"
        yield ""


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Padded, so that it reads on a terminal too; a column that holds numbers alone is aligned to the right."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (columns, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(columns))]
    numeric = [all(is_number(row[i]) for row in rows) for i in range(len(columns))]
    pads = [str.rjust if number else str.ljust for number in numeric]
    lines = [
        "| " + " | ".join(pad(text, w) for pad, text, w in zip(pads, row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (w + 1) + (":" if number else "-") for w, number in zip(widths, numeric, strict=True))
    return [lines[0], rule + "|", *lines[1:]]


def is_number(text: str) -> bool:
    """Whether a cell holds a number, with its interval or unit, or a dash for none."""
    return text == "–" or NUMBER.fullmatch(text) is not None
