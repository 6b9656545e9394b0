"""Every file of examples/ runs as a user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {"offline_inference.py": "assistant: ", "llm_engine.py": "output tokens/s"}


def test_no_example_is_left_out() -> None:
    by_themselves = {path.name for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text()}
    assert by_themselves == set(EXAMPLES)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_example(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert run.returncode == 0, run.stderr
    assert EXAMPLES[name] in run.stdout
