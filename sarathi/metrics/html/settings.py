"""A run's settings as tables, those that differ from the defaults first. Knows no setting by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sarathi.config import BenchmarkConfig
from sarathi.config.setting import Choice, Config, Setting, default_of, fields_of
from sarathi.metrics.html.page import NO_VALUE, Cell, Page, Value

_UNKNOWN = object()  # the default of a setting that is no longer declared


class _Row(NamedTuple):
    group: str
    name: str
    value: Any
    default: Any
    help: str


def add_settings(page: Page, config: Mapping[str, Any]) -> None:
    """Two tables of what config.yaml holds; settings that this version no longer declares have no default."""
    rows = list(_walk(config, BenchmarkConfig, "run"))
    changed = [row for row in rows if row.value != row.default]
    headers = ["component", "setting", "value", "default", "meaning"]
    if changed:
        page.add_table(headers, map(_cells, changed), caption="Settings that differ from the defaults", sortable=False)
    elif rows:
        page.add_text("Every setting has its default.")
    else:
        page.add_text("The run's folder holds no config.yaml.")
    if rows:
        page.add_table(headers, map(_cells, rows), caption=f"All {len(rows)} settings", sortable=False, folded=True)


def _cells(row: _Row) -> list[Value]:
    changed = row.value != row.default
    default = NO_VALUE if row.default is _UNKNOWN else _text(row.default)
    value = Cell(_text(row.value), tone="strong" if changed else "")
    return [Cell(row.group, tone="muted"), row.name, value, Cell(default, tone="muted"), Cell(row.help, tone="muted")]


def _walk(content: Mapping[str, Any], config_type: type[Config] | None, group: str) -> Iterator[_Row]:
    fields = fields_of(config_type) if config_type else {}
    nested = []
    for name, value in content.items():
        f = fields.get(name)
        if isinstance(value, Mapping) and (f is None or "setting" not in f.metadata):
            nested.append((name, value, f.metadata if f else {}))
        elif f is not None and "setting" in f.metadata:
            declared: Setting = f.metadata["setting"]
            unit = f" ({declared.unit})" if declared.unit else ""
            yield _Row(group, name, value, default_of(f), f"{declared.help.rstrip('.')}{unit}")
        else:
            yield _Row(group, name, value, _UNKNOWN, "")
    for name, value, metadata in nested:
        choice: Choice | None = metadata.get("choice")
        if choice is None:
            yield from _walk(value, metadata.get("component"), name)
            continue
        chosen = value.get("type")
        yield _Row(name, "type", chosen, choice.resolve(choice.default), choice.help.rstrip("."))
        rest = {key: item for key, item in value.items() if key != "type"}
        yield from _walk(rest, choice.types.get(str(chosen)), name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
