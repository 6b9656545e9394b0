"""Which runs are seeds of one setting, and what each setting is called. Knows settings and seeds, no results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sarathi.comparison.run import ComparedRun
from sarathi.config.setting import as_typed
from sarathi.errors import one_line

_MAX_LABEL_SETTINGS, _MAX_TRIED_SETTINGS = 4, 20
_OFF = ("null", "false")
_TELLING = ("chunk_size", "alpha", "target_ms", "c_max", "l_min", "device", "qps", "num_replicas", "seed")
_SECTIONS = ("scheduler_config", "executor_config", "routing_config", "request_generator_config")


@dataclass(frozen=True)
class Entry:
    """What one row of a comparison is of: one run, or several that differ by seed alone."""

    label: str
    runs: tuple[ComparedRun, ...]

    def shares_runs(self, other: Entry) -> bool:
        return not {id(run) for run in self.runs}.isdisjoint(id(run) for run in other.runs)


def make_entries(runs: Sequence[ComparedRun]) -> list[Entry]:
    """Rows in order of their first runs.

    Runs with equal settings are seeds of one setting where their seeds differ. Where seeds repeat (a run before and
    after a change of the code, say), runs count as seeds of one setting within each parent folder; where they repeat
    there too, each run stands alone. When all runs are seeds of one setting, each is a row, and they together the last.
    """
    groups: list[list[ComparedRun]] = []
    for same in _grouped(runs, lambda run: _frozen(run.settings)):
        for part in [same] if _seeds_differ(same) else _grouped(same, lambda run: run.path.resolve().parent):
            groups += [part] if _seeds_differ(part) else [[run] for run in part]
    if len(groups) == 1 and len(runs) > 1:
        alone = [[run] for run in runs]
        return [*_labelled(alone), Entry(f"all {len(runs)} seeds", tuple(runs))]
    return _labelled(groups)


def differing_settings(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """By dotted key, the value in each entry ("" where it has no such setting) of settings that differ; last the seeds.

    One that only some entries have, and that is off in all of them, counts as the same.
    """
    keys = dict.fromkeys(key for entry in entries for key in entry.runs[0].settings)
    table = {key: [_shown(entry.runs[0].settings, key) for entry in entries] for key in keys}
    table = {key: values for key, values in table.items() if len(set(values)) > 1 and set(values) - {*_OFF, ""}}
    if "scheduler" in table:
        table.pop("scheduler_config.type", None)  # a worse name for the same
    return {**table, "seed": [", ".join(str(run.seeds.get("seed", "-")) for run in entry.runs) for entry in entries]}


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return as_typed(settings[key]) if key in settings else ""


def _grouped(runs: Iterable[ComparedRun], key: Callable[[ComparedRun], Hashable]) -> list[list[ComparedRun]]:
    groups: dict[Hashable, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _seeds_differ(runs: Sequence[ComparedRun]) -> bool:
    return len({_frozen(run.seeds) for run in runs}) == len(runs)


def _frozen(value: Any) -> Hashable:
    """Equal for equal settings, whatever lists and mappings they hold, and for nothing else."""
    if isinstance(value, dict):
        return "mapping", frozenset((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, list):
        return "list", tuple(map(_frozen, value))
    return type(value) is bool, value


def _labelled(groups: Sequence[Sequence[ComparedRun]]) -> list[Entry]:
    """The fewest settings that tell the groups apart, scheduler first; where none do, the folder as well."""
    texts = _setting_texts(groups)
    labels = next((found for found in _setting_labels(texts) if _are_unique(found)), None)
    if labels is None:
        schedulers = texts.get("scheduler", [""] * len(groups))
        labels = next(found for found in _folder_labels(schedulers, groups) if _are_unique(found))
    return [Entry(label, tuple(runs)) for label, runs in zip(labels, groups, strict=True)]


def _are_unique(labels: Sequence[str]) -> bool:
    return len(set(labels)) == len(labels) and all(labels)


def _setting_labels(texts: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Labels from each set of settings, smaller sets first; the scheduler, where it differs, is in all of them."""
    first = [key for key in texts if key == "scheduler"]
    rest = sorted((key for key in texts if key not in first), key=_rank)[:_MAX_TRIED_SETTINGS]
    for size in range(_MAX_LABEL_SETTINGS + 1):
        for chosen in combinations(rest, size):
            if keys := [*first, *chosen]:
                yield [" ".join(filter(None, parts)) for parts in zip(*(texts[key] for key in keys), strict=True)]


def _rank(key: str) -> tuple[int, int]:
    """What users call a run by comes first: the names in _TELLING, then settings of scheduler and device."""
    name = key.rpartition(".")[2]
    section = key.partition(".")[0]
    return (
        _TELLING.index(name) if name in _TELLING else len(_TELLING),
        _SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS),
    )


def _folder_labels(starts: Sequence[str], groups: Sequence[Sequence[ComparedRun]]) -> Iterator[list[str]]:
    """The folder that holds the runs, else the run's own, else more of the path; at last a number."""
    parents = [runs[0].path.resolve().parent for runs in groups]
    own = [runs[0].path.resolve() if len(runs) == 1 else runs[0].path.resolve().parent for runs in groups]
    for paths, depth in ((parents, 1), (own, 1), *((own, depth) for depth in range(2, 20))):
        names = [one_line("/".join(path.parts[-depth:])) for path in paths]
        yield [f"{start} {name}".strip() for start, name in zip(starts, names, strict=True)]
    yield [
        one_line(f"{start} {path} ({i})").strip()
        for i, (start, path) in enumerate(zip(starts, own, strict=True), start=1)
    ]


def _setting_texts(groups: Sequence[Sequence[ComparedRun]]) -> dict[str, list[str]]:
    """By key, how each group shows a setting that tells some of them apart; "" where it has none.

    Seeds count only between groups of one run.
    """
    table = differing_settings([Entry("", tuple(runs)) for runs in groups])
    del table["seed"]
    if all(len(runs) == 1 for runs in groups):
        for key in dict.fromkeys(key for runs in groups for key in runs[0].seeds):
            values = [_shown(runs[0].seeds, key) for runs in groups]
            if len(set(values)) > 1:
                table[key] = values
    last = [key.rpartition(".")[2] for key in table]
    names = {
        key: name if last.count(name) == 1 else ".".join(key.split(".")[-2:])
        for key, name in zip(table, last, strict=True)
    }
    names |= {key: "" for key in table if key == "scheduler" or key.endswith(".type")}  # such a value says it all
    return {key: [_text(names[key], value) for value in values] for key, values in table.items()}


def _text(name: str, value: str) -> str:
    """A path by its last part; "" for no value."""
    last = value.rstrip("/").rpartition("/")[2] if "/" in value else value
    return one_line(f"{name} {last}").strip() if value else ""
