"""What is made of all reports: the index, the headline results, and the blocks in docs."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks import fill, headline, index
from benchmarks.harness.options import Options
from benchmarks.harness.report import CLAIM_COLUMNS, LEGEND, Report
from benchmarks.harness.statistics import Verdict
from benchmarks.harness.written import FIGURES, ORDER, PNG
from sarathi.errors import InputError
from sarathi.metrics.html.page import Cell, Page
from tests.paper_reports import NOT_UTF8, made

# ---- the index


def test_the_index_holds_every_report_in_the_papers_order(tmp_path: Path):
    for name, title in (("sweep", "Sweep: all"), ("table10", "Table 10: APC"), ("table4", "Table 4: Aging")):
        made(tmp_path, name, title, claims=3)
    made(tmp_path, "table4", "Table 4: Aging", "cpu")
    (tmp_path / "sim-quick").mkdir()
    (tmp_path / "sim-quick" / "table9.json").write_text("{}")
    index.main(["--results", str(tmp_path)])
    first = (tmp_path / "index.html").read_bytes()
    text = first.decode().replace(index.NO_BREAK, " ")
    headings = re.findall(r'<h2 id="([^"]*)">', text)
    assert headings == ["sim", "cpu", "sim-table4", "sim-table10", "sim-sweep", "cpu-table4"]
    assert '<td><a href="#sim-table10">Table 10</a></td><td>reading 0</td><td>claim 1</td>' in text
    assert '<td><a href="#sim-sweep">Sweep</a></td><td>reading 1</td><td class="n" data-sort="1.0">1</td>' in text
    assert text.count('<td class="bad">opposite</td>') == 2 * 3 * 2 and 'onerror="' not in text
    assert text.count("<li>says this</li>") == 4
    assert text.count(html.escape(LEGEND)) == 2 + 4  # above all claims of each backend, and in each report
    assert "<td>reading\u00a00</td><td>claim 1</td>" in first.decode()
    assert text.count('<img src="data:image/png;base64,') == 4 and 'alt="Picture of sweep"' in text
    index.main(["--results", str(tmp_path)])
    assert (tmp_path / "index.html").read_bytes() == first


def test_every_verdict_has_a_tone_and_columns_of_numbers_sort():
    assert {*index.TONES} == {*get_args(Verdict)}
    columns = ["s", "chunk", "reading"]
    rows = index._cells(columns, [["1,234.5 ± 0.2 %", "256", "a b"], ["–", "256 to 512", "1"], ["−3 s", "–", ""]])
    numbers, texts, readings = zip(*rows, strict=True)
    assert [cell.value for cell in numbers if isinstance(cell, Cell)] == pytest.approx(
        [1234.5, np.nan, -3], nan_ok=True
    )
    assert texts == ("256", "256 to 512", "–") and readings == ("a\u00a0b", "1", "")
    assert index._cells(columns, []) == []


OLD = {"kind": "table", "heading": "Verdict", "columns": ["the paper's claim", "paper", "ours", "verdict"],
       "rows": [["a", "1", "2", "reproduced"]], "note": ""}  # fmt: skip
WORD = OLD | {"columns": [*CLAIM_COLUMNS], "rows": [["", "a", "1", "2", "possible"]]}
WHOLE = {"name": "x", "title": "X", "notice": "", "headlines": [], "blocks": []}


TABLE = OLD | {"heading": "Numbers"}
FIGURE = {"kind": "figure", "file": 1, "caption": ""}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "property name"), (b"[]", "no object"), (b"{}", "another name"), (b"\xff", "utf-8"),
        (b"[" * 100_000, "recursion"),
        *((json.dumps(WHOLE | part).encode(), fault) for part, fault in (
            ({"name": "y"}, "another name"), ({"title": 1}, "title is no text"),
            ({"notice": None}, "notice is no text"), ({"headlines": "one"}, "headlines are no texts"),
            ({"headlines": [1]}, "headlines are no texts"), ({"blocks": None}, "blocks are no list"),
            ({"blocks": ["x"]}, "block 0: no such kind"),
            ({"blocks": [TABLE, {"kind": "?"}]}, "block 1: no such kind"),
            ({"blocks": [{"kind": ["table"]}]}, "block 0: no such kind"),
            ({"blocks": [{"kind": "table"}]}, "block 0: heading is no text"),
            ({"blocks": [FIGURE]}, "block 0: file is no text"),
            ({"blocks": [{"kind": "list", "heading": "Verdict", "items": [1]}]}, "block 0: items are no texts"),
            ({"blocks": [TABLE | {"columns": None}]}, "block 0: columns are no texts"),
            ({"blocks": [TABLE | {"rows": [["a", "1", "2"]]}]}, "block 0: rows are not of a text for each column"),
            ({"blocks": [TABLE | {"rows": [["a", "1", "2", 3]]}]}, "block 0: rows are not of a text for each column"),
            ({"blocks": [OLD]}, "verdicts have other columns"), ({"blocks": [WORD]}, "'possible' is no verdict"),
        )),
    ],
)  # fmt: skip
def test_what_is_no_report_is_named_in_one_line(tmp_path: Path, content: bytes, fault: str):
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "x.json").write_bytes(content)
    for program in (index, headline):
        with pytest.raises(InputError, match=rf"^[^\n]*x\.json is not a report [^\n]*{fault}[^\n]*; remove it[^\n]*$"):
            program.main(["--results", str(tmp_path)])


def test_a_list_may_be_called_as_the_verdicts_are(tmp_path: Path):
    (tmp_path / "sim").mkdir()
    block = {"kind": "list", "heading": "Verdict", "items": ["an item"]}
    (tmp_path / "sim" / "x.json").write_text(json.dumps(WHOLE | {"blocks": [block]}))
    assert "<li>an item</li>" in index.index_page(tmp_path)


def test_without_reports_or_their_figures_one_line_says_so(tmp_path: Path):
    for program in (index, headline):
        with pytest.raises(InputError, match=r"no reports under .*make paper"):
            program.main(["--results", str(tmp_path)])
    png = made(tmp_path, "table4", "Table 4: Aging").path(".png")
    png.write_text("<svg/>")
    with pytest.raises(InputError, match=r"table4\.png, a figure of a report, is no PNG"):
        index.main(["--results", str(tmp_path)])
    png.unlink()
    with pytest.raises(InputError, match=r"table4\.png, a figure of a report, is missing"):
        index.main(["--results", str(tmp_path)])


def test_page_has_images_lists_and_named_sections():
    page = Page("Title")
    page.add_section("A long heading", name="Short", anchor="here")
    page.add_list(["<one>", "two"], title="List")
    page.add_image(PNG, 'a "caption"')
    text = page.render()
    assert '<a href="#here">Short</a>' in text and '<h2 id="here">A long heading</h2>' in text
    assert "<li>&lt;one&gt;</li><li>two</li>" in text
    assert '<img src="data:image/png;base64,iVBORw0KGgo=" alt="a &quot;caption&quot;">' in text


# ---- the headline results


def test_headline_tells_backends_and_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made(tmp_path, "table4", "Table 4: Aging", claims=3, headline="two sentences. Of it.")
    made(tmp_path, "figure2", "Figure 2: means", claims=2, headline="")
    made(tmp_path, "table9", "Table 9: LPRS", "cpu", claims=0)
    capsys.readouterr()
    headline.main(["--results", str(tmp_path)])
    legend, simulated, real = capsys.readouterr().out.split("\n\n**")
    text = simulated.replace("\n  ", " ")
    assert legend.startswith("In brackets: ") and text.startswith("SIMULATED: ")
    assert "\n- table4 (1/3): two sentences. Of it.\n" in text
    assert "Further: figure2 (1/2)." in text
    assert "All 5 claims in all readings: 2 reproduced, 3 opposite." in text
    assert "table9" in text.partition("Not made yet")[2] and "table4" not in text.partition("Not made yet")[2]
    assert real.startswith("REAL") and "`make NAME BACKEND=cpu`" in real and "- table9: says this\n" in real
    assert "BACKEND=cuda" not in real


def test_headline_is_one_screen(tmp_path: Path):
    """With two sentences of 150 letters from every table; as much of them as there is room for."""
    for backend in ("sim", "cpu"):
        for name in ORDER:
            report = Report(name, f"{name}: title", Options(backend=backend, results=tmp_path))
            report.add_check("claim", "1", "2", True, "full, KV unbound")
            for says in () if name in FIGURES else ("word " * 29 + "first.", "word " * 29 + "second."):
                report.add_headline(says)
            report.finish()
        if backend == "sim":
            text = headline.headline(tmp_path)
            assert text.count("first.") == 9 and 0 < text.count("second.") < 9
            assert len(text.splitlines()) == headline.LINES
    text = headline.headline(tmp_path)
    lines = text.splitlines()
    assert len(lines) == headline.LINES and max(map(len, lines)) <= headline.COLUMNS
    assert text.count("first.") and not text.count("second.") and text.count("word ...\n") == 18 - text.count("first.")


# ---- the docs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose docs have two blocks, and results for them."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Title\n\n<!-- begin headline -->\nold\n<!-- end headline -->\n\nEnd.\n")
    (tmp_path / "docs" / "reproduction.md").write_text(
        "# Paper\n\nBefore.\n\n<!-- begin table4 -->\n<!-- end table4 -->\n\nBetween.\n\n"
        "<!-- begin figure6 -->\n## old\n<!-- end figure6 -->\n\nAfter.\n"
    )
    for name in ("table4", "figure6", "table9"):
        made(tmp_path / "results", name, f"{name}: title")
    return tmp_path


def fill_in(root: Path) -> dict[str, bytes]:
    fill.main(["--root", str(root), "--results", str(root / "results")])
    shown = [root / "README.md", *sorted((root / "docs").rglob("*.*"))]
    return {str(path.relative_to(root)): path.read_bytes() for path in shown}


def test_fill_writes_blocks_and_copies_what_they_show(root: Path):
    images = root / "docs" / "images" / "reproduction"
    images.mkdir(parents=True)
    (images / "table3.png").write_bytes(PNG)  # shown no more
    files = fill_in(root)
    assert sorted(files) == [
        "README.md", "docs/images/reproduction/figure6.png", "docs/images/reproduction/table4.png",
        "docs/reproduction.md",
    ]  # fmt: skip
    doc, readme = files["docs/reproduction.md"].decode(), files["README.md"].decode()
    assert doc.startswith("# Paper\n\nBefore.\n\n<!-- begin table4 -->\n\n### table4: title\n")
    assert "\n#### Verdict\n" in doc and "\n## " not in doc and doc.endswith("<!-- end figure6 -->\n\nAfter.\n")
    assert "![Picture of table4](images/reproduction/table4.png)" in doc
    assert f"# Title\n\n<!-- begin headline -->\n\n{headline.headline(root / 'results')}" in readme
    assert readme.endswith("<!-- end headline -->\n\nEnd.\n") and "old" not in readme + doc
    assert fill_in(root) == files


@pytest.mark.parametrize(
    ("doc", "message"),
    [
        ("<!-- begin table5 -->\n<!-- end table5 -->\n", r"table5\.md is missing: run make table5 first"),
        ("<!-- begin table4 -->\n<!-- end table9 -->\n", "lacks its <!-- end NAME -->"),
        ("<!-- begin table4 -->\ntext\n", "lacks its <!-- end NAME -->"),
        ("<!-- begin speed -->\n<!-- end speed -->\n", "nothing fills a block speed"),
    ],
)
def test_fill_fails_in_one_line_and_touches_nothing(root: Path, doc: str, message: str):
    (root / "docs" / "reproduction.md").write_text(doc)
    readme = (root / "README.md").read_bytes()
    with pytest.raises(InputError, match=f"^[^\n]*{message}[^\n]*$"):
        fill_in(root)
    assert (root / "README.md").read_bytes() == readme and (root / "docs" / "reproduction.md").read_text() == doc


def test_fill_shows_the_cpus_reports_too(root: Path):
    made(root / "results", "table4", "table4: real", "cpu").path(".png").write_bytes(PNG + b"cpu")
    doc = root / "docs" / "reproduction.md"
    doc.write_text("<!-- begin table4 -->\n<!-- end table4 -->\n<!-- begin cpu/table4 -->\n<!-- end cpu/table4 -->\n")
    files = fill_in(root)
    text = files["docs/reproduction.md"].decode()
    assert text.index("**SIMULATED") < text.index("<!-- begin cpu/table4 -->") < text.index("**REAL")
    assert "(images/reproduction/cpu-table4.png)" in text and "(images/reproduction/table4.png)" in text
    assert files["docs/images/reproduction/cpu-table4.png"] == PNG + b"cpu"
    (root / "results" / "cpu" / "table4.md").unlink()
    with pytest.raises(InputError, match=r"cpu/table4\.md is missing: run make table4 BACKEND=cpu first"):
        fill_in(root)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("README.md", NOT_UTF8, r"README\.md is not UTF-8"),
        ("docs/reproduction.md", NOT_UTF8, r"reproduction\.md is not UTF-8"),
        ("results/sim/table4.md", NOT_UTF8, r"table4\.md is not UTF-8"),
        (
            "results/sim/table4.md",
            b"## T\n\n<!-- end table4 -->\n",
            "block table4 has a line that begins or ends a block",
        ),
        ("results/sim/figure6.md", b"<!-- begin x -->\n", "block figure6 has a line that begins or ends a block"),
        ("results/sim/table4.png", b"<svg/>", r"table4\.png, a figure of a report, is no PNG"),
    ],
)
def test_fill_takes_no_damaged_file(root: Path, file: str, content: bytes, message: str):
    (root / file).write_bytes(content)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=f"^[^\n]*{message}[^\n]*$"):
        fill_in(root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_fill_writes_no_text_whose_images_it_cannot_write(root: Path):
    doc = root / "docs" / "reproduction.md"
    before = doc.read_bytes()
    (root / "docs" / "images").write_text("a file, not a folder")
    with pytest.raises(OSError, match="images"):
        fill_in(root)
    assert doc.read_bytes() == before and "old" in (root / "README.md").read_text()


def test_fill_refuses_large_images(root: Path):
    (root / "results" / "sim" / "table4.png").write_bytes(PNG.ljust(fill.MAX_IMAGE_BYTES + 1))
    with pytest.raises(InputError, match=r"table4\.png has 250,001 bytes; 250,000 are allowed in docs"):
        fill_in(root)
