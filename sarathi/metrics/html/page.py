"""A self-contained HTML page: headings, headline numbers, tables, and plotly figures. Knows nothing of runs.

Every text is escaped here. Figures are plotly's own JSON as plain dicts; they and plotly.js lie compressed in the page,
which asks the network for nothing.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import importlib.util
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

Tone = Literal["", "good", "bad", "muted", "strong"]
NO_VALUE = "–"
_HERE = Path(__file__).parent


class Cell(NamedTuple):
    """A table's cell that is more than its text."""

    text: str
    value: float | None = None  # what its column is sorted by; a cell that has one is aligned like a number
    tone: Tone = ""
    href: str = ""  # relative to the page


Value = Cell | str | float | None


class _Section(NamedTuple):
    heading: str
    name: str  # short
    anchor: str
    parts: list[str]


def number(value: float | None, digits: int = 4, factor: float = 1.0) -> str:
    """`value * factor` with thousands separators and `digits` significant digits; a whole number keeps all its own."""
    if value is None or not math.isfinite(value := value * factor):
        return NO_VALUE
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


class Page:
    """Collects a page's parts in reading order; `render` gives its HTML.

    `badge` stands beside the title, loud. Without `add_section` parts stand under the title.
    """

    def __init__(self, title: str, subtitle: str = "", *, badge: str = "") -> None:
        self._title, self._subtitle, self._badge = title, subtitle, badge
        self._sections: list[_Section] = [_Section("", "", "", [])]
        self._figures: list[dict[str, Any]] = []

    def add_section(self, heading: str, text: str = "", *, name: str = "", anchor: str = "") -> None:
        """What is added from here on stands under `heading`; links at the top call it `name`, by default the same.

        `anchor`: what a `Cell` links to with `#anchor`; without one the section is numbered.
        """
        self._sections.append(_Section(heading, name or heading, anchor or f"section-{len(self._sections)}", []))
        if text:
            self.add_text(text)

    def add_text(self, text: str) -> None:
        self._add(f'<p class="lead">{html.escape(text)}</p>')

    def add_list(self, items: Iterable[str], *, title: str = "") -> None:
        heading = f"<h3>{html.escape(title)}</h3>" if title else ""
        self._add(f'<div class="list">{heading}<ul>{"".join(f"<li>{html.escape(i)}</li>" for i in items)}</ul></div>')

    def add_image(self, png: bytes, caption: str) -> None:
        """A PNG, which comes to lie in the page; its caption is what is read where it cannot be seen."""
        text = html.escape(caption)
        source = f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
        image = f'<img src="{source}" alt="{text}">'
        self._add(f'<figure class="figure wide">{image}<figcaption>{text}</figcaption></figure>')

    def add_notice(self, text: str) -> None:
        """A line that must not be overlooked."""
        self._add(f'<p class="notice" role="note">{html.escape(text)}</p>')

    def add_numbers(self, items: Iterable[tuple[str, str, str]]) -> None:
        """Headline tiles of (label, value, hint); the hint may be empty."""
        tiles = []
        for label, value, hint in items:
            small = f'<dd class="hint">{html.escape(hint)}</dd>' if hint else ""
            tiles.append(f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd>{small}</div>")
        self._add(f'<dl class="numbers">{"".join(tiles)}</dl>')

    def add_legend(self, items: Iterable[tuple[str, str, int, int]]) -> None:
        """One legend for the section's figures, of (name, color, index of the dash, index of the shape); it stays in
        sight while they scroll by. A click hides or shows the traces of that name in all such sections, a double click
        all others. The figures' own legends are for the caller to leave out.
        """
        keys = "".join(map(_legend_key, items))
        self._add(f'<div class="legend" role="group" aria-label="Legend">{keys}</div>')

    def add_table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[Value]],
        *,
        caption: str = "",
        sortable: bool = True,
        folded: bool = False,
    ) -> None:
        """A table of texts, numbers (formatted by `number`, right-aligned), None and Cells.

        `folded`: only the caption is seen until it is clicked.
        """
        cells = [[_as_cell(value) for value in row] for row in rows]
        numeric = [any(row[i].value is not None for row in cells) for i in range(len(headers))]
        head = "".join(_header(text, is_n, sortable) for text, is_n in zip(headers, numeric, strict=True))
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in cells)
        title = html.escape(caption)
        name = f' aria-label="{title}"' if title else ""
        inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        caption_tag = f"<caption>{title}</caption>" if title and not folded else ""
        kind = ' class="sortable"' if sortable else ""
        width = " narrow" if len(headers) <= 3 else ""
        table = f"<table{kind}>{caption_tag}{inside}</table>"
        table = f'<div class="scroll{width}" tabindex="0" role="group"{name}>{table}</div>'
        self._add(f"<details><summary>{title}</summary>{table}</details>" if folded else table)

    def add_figure(
        self,
        figure: dict[str, Any],
        caption: str = "",
        *,
        title: str = "",
        wide: bool = False,
        log_switch: Literal["", "x", "y", "xy"] = "",
    ) -> None:
        """A plotly figure {"data": [...], "layout": {...}}; two stand side by side unless `wide`.

        `log_switch` names the axis, or both, that a button switches between linear and log scale; the figure's layout
        says which it starts with. Texts within the figure are for `figures.plotly_text` to escape.
        """
        i = len(self._figures)
        self._figures.append(figure)
        is_log = all(figure["layout"].get(f"{axis}axis", {}).get("type") == "log" for axis in log_switch)
        heading = f'<h3 id="figure-{i}-title">{html.escape(title)}</h3>' if title else ""
        button = (
            f'<button type="button" class="log" data-axis="{log_switch}" '
            f'aria-pressed="{str(is_log).lower()}">log scale</button>'
            if log_switch
            else ""
        )
        label = f' aria-labelledby="figure-{i}-title"' if title else ""
        below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        self._add(
            f'<figure class="figure{" wide" if wide else ""}"><div class="top">{heading}{button}</div>'
            f'<div class="plot" id="figure-{i}" role="img"{label}></div>{below}</figure>'
        )

    def render(self) -> str:
        """The page, which UTF-8 can encode whatever its texts are.

        Raises ImportError, one line, if it has figures and plotly is not installed.
        """
        body = self._body()
        name = " · ".join(filter(None, [self._title, self._subtitle]))[:150]
        data = ""
        if self._figures:
            figures = json.dumps(self._figures, separators=(",", ":"), allow_nan=False).encode()
            data = _packed("plotly-js", _plotly_js()) + _packed("figures", _compressed(figures))
        # Scripts carry the page's own number, so that none which slipped in would run.
        nonce = hashlib.sha256((body + data).encode("utf-8", "replace")).hexdigest()[:24]
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'"
        )
        page = (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
            f"<title>{html.escape(name)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n"
            f'<body>\n{body}\n{data}<script nonce="{nonce}">\n{_asset("page.js")}</script>\n</body>\n</html>\n'
        )
        return page.encode("utf-8", "replace").decode()

    def _add(self, part: str) -> None:
        self._sections[-1].parts.append(part)

    def _body(self) -> str:
        badge = f' <strong class="badge">{html.escape(self._badge)}</strong>' if self._badge else ""
        subtitle = f'<p class="subtitle">{html.escape(self._subtitle)}</p>' if self._subtitle else ""
        named = [section for section in self._sections if section.heading]
        links = "".join(f'<a href="#{html.escape(s.anchor)}">{html.escape(s.name)}</a>' for s in named)
        nav = f'<nav aria-label="Sections">{links}</nav>' if links else ""
        parts = [f"<header><h1>{html.escape(self._title)}{badge}</h1>{subtitle}{nav}</header>\n<main>"]
        for heading, _, anchor, content in self._sections:
            if not content:
                continue
            title = f'<h2 id="{html.escape(anchor)}">{html.escape(heading)}</h2>' if heading else ""
            parts.append(f"<section>{title}\n" + "\n".join(content) + "</section>")
        return "\n".join([*parts, "</main>"])


def _as_cell(value: Value) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell(value) if isinstance(value, str) else Cell(number(value), math.nan if value is None else value)


def _cell(cell: Cell) -> str:
    classes = " ".join(filter(None, ["" if cell.value is None else "n", cell.tone]))
    attributes = f' class="{classes}"' if classes else ""
    if cell.value is not None and math.isfinite(cell.value):
        attributes += f' data-sort="{float(cell.value)}"'
    text = html.escape(cell.text)
    return f"<td{attributes}>" + (f'<a href="{html.escape(cell.href)}">{text}</a>' if cell.href else text) + "</td>"


_DASHES = ("", ' stroke-dasharray="6 3"', ' stroke-dasharray="2 3"')
_SHAPES = ("M9 6a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", "M9 2h8v8h-8z", "M13 1l5 5l-5 5l-5 -5z")


def _legend_key(item: tuple[str, str, int, int]) -> str:
    name, color, dash, shape = item
    line = f'<path d="M0 6h26" stroke="{color}" stroke-width="2"{_DASHES[dash % len(_DASHES)]}/>'
    mark = f'<path d="{_SHAPES[shape % len(_SHAPES)]}" fill="{color}"/>'
    swatch = f'<svg width="26" height="12" aria-hidden="true">{line}{mark}</svg>'
    return (
        f'<button type="button" aria-pressed="true" data-name="{html.escape(html.escape(name, quote=False))}">'
        f"{swatch} {html.escape(name)}</button>"
    )


_N = ' class="n"'


def _header(text: str, numeric: bool, sortable: bool) -> str:
    inside = f'<button type="button">{html.escape(text)}</button>' if sortable else html.escape(text)
    return f'<th scope="col"{_N if numeric else ""}>{inside}</th>'


@functools.cache
def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _compressed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")


def _packed(name: str, text: str) -> str:
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


@functools.cache
def _plotly_js() -> str:
    """plotly.min.js of the installed package, gzip in base64; the package itself is not imported."""
    found = importlib.util.find_spec("plotly")
    for folder in found.submodule_search_locations or () if found else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return _compressed(path.read_bytes())
    raise ImportError("HTML reports need the package plotly; install sarathi-serve-fair[bench]")
