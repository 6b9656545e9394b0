"""What must be known before figures of several runs are set beside each other, a line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sarathi.comparison.groups import Entry
from sarathi.comparison.run import ComparedRun, RunPair, have_same_seeds, machine_differences, workload_differences
from sarathi.errors import one_line
from sarathi.metrics.headline import METRICS

FEW_SEEDS = 4  # fewer give no interval worth the name


def find_warnings(entries: Sequence[Entry], baseline: Entry, pairs_of: Mapping[str, Sequence[RunPair]]) -> list[str]:
    """`pairs_of`: by label, the pairs of runs with equal seeds and requests. Entries of which the same is to be said
    share a line."""
    own = _by_text((text, entry.label) for entry in entries for text in _of_one(entry))
    against = _by_text(
        (text, entry.label)
        for entry in entries
        if not entry.shares_runs(baseline)
        for text in _against(baseline, entry, pairs_of[entry.label])
    )
    lines = [f"{labels}: {text}" for text, labels in own]
    lines += [f"{labels} against {baseline.label}: {text}" for text, labels in against]
    return [one_line(line) for line in lines]


def _by_text(items: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(text, the labels that go with it)."""
    labels: dict[str, list[str]] = {}
    for text, label in items:
        labels.setdefault(text, []).append(label)
    return [(text, ", ".join(names)) for text, names in labels.items()]


def _of_one(entry: Entry) -> Iterator[str]:
    num_runs = len(entry.runs)
    if 1 < num_runs < FEW_SEEDS:
        yield f"with {num_runs} seeds the intervals mean little"
    if num_runs > 1 and all(len({metric.of(run.summary) for run in entry.runs}) == 1 for metric in METRICS):
        yield f"all {num_runs} seeds gave the same result; nothing in these runs is drawn at random"
    for run in entry.runs:
        left = run.count("unfinished") + run.count("aborted")
        if left:
            yield (
                f"{run.path.name} left {left:,} of {run.count('requests'):,} requests unfinished "
                "or aborted; its means are over those that finished, which are the faster ones"
            )


def _against(baseline: Entry, entry: Entry, pairs: Sequence[RunPair]) -> Iterator[str]:
    if not pairs:
        yield from (f"not paired: {reason}" for reason in _why_unpaired(baseline, entry))
    elif len(baseline.runs) != len(entry.runs):
        yield (
            f"changes are over the {len(pairs)} that both have of {len(entry.runs)} and {len(baseline.runs)} seeds, "
            "means over all of them"
        )
    yield from machine_differences(baseline.runs[0], entry.runs[0])
    different = [(a, b) for a, b in pairs if _finished(a) != _finished(b)]
    if different:
        a, b = different[0]
        yield (
            f"means are over different requests: {len(_finished(b)):,} finished and {len(_finished(a)):,} in the "
            f"baseline, {len(_finished(a) & _finished(b)):,} in both"
        )


def _why_unpaired(baseline: Entry, entry: Entry) -> list[str]:
    """At least one line."""
    partners = [(a, b) for a in baseline.runs for b in entry.runs if have_same_seeds(a, b)]
    lines = []
    if len({id(b) for _, b in partners}) < min(len(baseline.runs), len(entry.runs)):
        seeds = [", ".join(str(run.seeds.get("seed", "-")) for run in e.runs) for e in (entry, baseline)]
        same = seeds[0] == seeds[1]
        lines.append("seeds of generators or jitter differ" if same else f"seeds differ ({seeds[0]} and {seeds[1]})")
    a, b = next(((a, b) for a, b in partners if workload_differences(a, b)), (baseline.runs[0], entry.runs[0]))
    return [*lines, *workload_differences(b, a)] or ["no run has a partner of its own with its seed and requests"]


def _finished(run: ComparedRun) -> set[str]:
    return set(run.finished["request_id"].tolist())
