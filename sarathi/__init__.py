"""Chunked-prefill LLM serving with fair, latency-aware scheduling.

The names of the Python API; each is loaded when it is first used, so that `import sarathi` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sarathi.entrypoints.llm import LLM
    from sarathi.entrypoints.llm_engine import LLMEngine
    from sarathi.request import RequestOutput, SamplingParams

_HOMES = {
    "LLM": "sarathi.entrypoints.llm",
    "LLMEngine": "sarathi.entrypoints.llm_engine",
    "RequestOutput": "sarathi.request",
    "SamplingParams": "sarathi.request",
}

__all__ = ["LLM", "LLMEngine", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
