"""`make docs`: writes what lies under results into the blocks of README.md and docs/reproduction.md.

A block is what stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, each a line of its own. NAME is headline
in the README; in docs/reproduction.md a table, a figure or sweep, simulated, or `cpu/table4` of the CPU.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness.options import BACKENDS
from benchmarks.harness.written import ORDER, read_png
from benchmarks.headline import headline
from sarathi.benchmark.entry_point import exit_status
from sarathi.errors import InputError
from sarathi.metrics.sinks import write_text

README, DOC = Path("README.md"), Path("docs/reproduction.md")
REAL = tuple(f"{backend}/{name}" for backend in BACKENDS[1:] for name in ORDER)
IMAGES = Path("docs/images/reproduction")
MAX_IMAGE_BYTES = 250_000
BLOCK = re.compile(r"^<!-- begin (\S+) -->\n(.*?)^<!-- end (\S+) -->$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"^<!-- (?:begin|end) ", re.MULTILINE)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^()\s]+\.png)\)")


def fill(root: Path, results: Path) -> list[Path]:
    """Fill the blocks under `root`, copy the images that they show, drop those that none does any more; the files that
    were written. Nothing is touched unless all sources are there."""
    images: dict[str, bytes] = {}

    def table(name: str) -> str:
        backend, _, table = name.rpartition("/")
        return _report(results, backend or "sim", table, images)

    filled = {
        README: _filled(root / README, {"headline": lambda _: headline(results)}),
        DOC: _filled(root / DOC, dict.fromkeys((*ORDER, *REAL), table)),
    }
    (root / IMAGES).mkdir(parents=True, exist_ok=True)
    for name, content in images.items():
        (root / IMAGES / name).write_bytes(content)
    for path, text in filled.items():
        write_text(root / path, text)
    for old in (root / IMAGES).glob("*.png"):
        if old.name not in images:
            old.unlink()
    return [root / path for path in (*filled, *(IMAGES / name for name in images))]


def _filled(path: Path, sources: dict[str, Callable[[str], str]]) -> str:
    """The text of `path` with every block filled from the source of its name."""
    if not path.is_file():
        raise InputError(f"{path} is missing")
    text = _text(path)
    blocks = list(BLOCK.finditer(text))
    if 2 * len(blocks) != len(MARK.findall(text)) or any(block[1] != block[3] for block in blocks):
        raise InputError(f"{path}: a <!-- begin NAME --> lacks its <!-- end NAME -->, each in a line of its own")
    for name in (block[1] for block in blocks):
        if name not in sources:
            raise InputError(f"{path}: nothing fills a block {name}; known are {', '.join(sources)}")

    def block(found: re.Match[str]) -> str:
        name = found[1]
        content = sources[name](name).strip()
        if MARK.search(content):
            raise InputError(f"{path}: what fills the block {name} has a line that begins or ends a block itself")
        return f"<!-- begin {name} -->\n\n{content}\n\n<!-- end {name} -->"

    return BLOCK.sub(block, text)


def _report(results: Path, backend: str, name: str, images: dict[str, bytes]) -> str:
    """A report's Markdown, its headings a level lower; the images it shows are added to `images`."""
    path = results / backend / f"{name}.md"
    prefix, flag = ("", "") if backend == "sim" else (f"{backend}-", f" BACKEND={backend}")
    if not path.is_file():
        raise InputError(f"{path} is missing: run make {name}{flag} first")
    text = re.sub(r"^(#+ )", r"#\1", _text(path), flags=re.MULTILINE)
    text = re.sub(r"^\|.*\|$", lambda line: re.sub(r" {2,}|-{4,}", _squeezed, line[0]), text, flags=re.MULTILINE)
    for _, image in IMAGE.findall(text):
        images[prefix + image] = _image(path.parent / image)
    folder = IMAGES.relative_to(DOC.parent)
    return IMAGE.sub(lambda m: f"![{m[1]}]({folder.as_posix()}/{prefix}{m[2]})", text)


def _squeezed(run: re.Match[str]) -> str:
    """Padding and rules of a table, which nobody reads in a file, at their shortest."""
    return " " if run[0].isspace() else "---"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error})") from None


def _image(path: Path) -> bytes:
    content = read_png(path)
    if len(content) > MAX_IMAGE_BYTES:
        raise InputError(f"{path} has {len(content):,} bytes; {MAX_IMAGE_BYTES:,} are allowed in docs")
    return content


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    parser.add_argument("--root", type=Path, default=Path(), help="of the repository (default: here)")
    args = parser.parse_args(argv)
    for path in fill(args.root, args.results):
        print(path)


if __name__ == "__main__":
    sys.exit(exit_status(main))
