"""The entries of the search's YAML file, checked one by one, and the settings of a run that each stands for.

Knows one entry at a time and no combination of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sarathi.benchmark.capacity_search.reader import EntryReader, EntryT, fail
from sarathi.config import BenchmarkConfig, Config, setting
from sarathi.config.setting import Choice, fields_of
from sarathi.config.tree import suggestion
from sarathi.errors import shown

RATE_SETTINGS = ("qps", "interval")  # of interval generators: one of them sets the rate
# Of generators: what has a key of its own, what the search sets, and a number of requests that depends on the rate.
_NOT_KEYS = {"num_requests", "seed", "duration", *RATE_SETTINGS}


@dataclass(frozen=True)
class _Named(Config):
    name: str = setting("", "Name of the entry, by which tables and models call it.")

    def check(self) -> None:
        if not self.name.isprintable():
            self.reject("name", "text that a terminal and a file name can show")


@dataclass(frozen=True)
class ModelEntry(_Named):
    """The lists name the entries that it is combined with; null or empty takes all."""

    identifier: str = setting("", "Model name, a folder with a config.json, or a GGUF file.")
    parallel_specs: list | None = setting(None, "Names of parallel_spec.")
    scheduler_specs: list | None = setting(None, "Names of schedulers.")
    traces: list | None = setting(None, "Names of traces.")


@dataclass(frozen=True)
class ParallelEntry(_Named):
    tp_dimension: int = setting(1, "Devices that share each layer.", at_least=1, at_most=1024)
    pp_dimension: int = setting(1, "Pipeline stages.", at_least=1, at_most=1024)


@dataclass(frozen=True)
class _SchedulerKeys(_Named):
    scheduler: str = setting("", "Scheduler type, or the import path of your own.")
    batch_size: int = setting(128, "Most requests that run at the same time.", at_least=1, at_most=10**6)


@dataclass(frozen=True)
class _TraceKeys(_Named):
    num_requests: int = setting(1, "Requests of a probe.", at_least=1, at_most=10**7)
    start_qps: float = setting(1.0, "Rate of the first probe.", at_least=1e-3, at_most=10**5)
    max_seq_len: int | None = setting(None, "Longest request, prompt and output.", at_least=2)
    request_generator: str | None = setting(None, "SHAREGPT, or SYNTHETIC with a length_generator.")
    length_generator: str | None = setting(None, "How long synthetic requests are.")
    interval_generator: str = setting("POISSON", "How arrivals are spread.")


class SchedulerEntry(NamedTuple):
    name: str
    settings: dict[str, Any]  # by key of the run's flag


class TraceEntry(NamedTuple):
    name: str
    start_qps: float  # requests per second
    max_seq_len: int | None
    settings: dict[str, Any]  # by key of the run's flag
    cut_by: str | None  # key of the setting that shortens requests to max_seq_len
    input_files: dict[str, str]  # by key of the entry


class Entries(NamedTuple):
    schedulers: list[SchedulerEntry]
    traces: list[TraceEntry]
    parallel_spec: list[ParallelEntry]
    models: list[ModelEntry]


def read_entries(content: Mapping[Any, Any], file: str) -> Entries:
    """All entries of the file's content. Raises FlagError of --config-path, one line with list, entry and key."""
    for key in content:
        if key not in Entries._fields:
            fail(file, f"{key} is not known{suggestion(str(key), Entries._fields)}")
    lists = {name: _list(content, name, file) for name in Entries._fields}
    schedulers = [_scheduler(EntryReader("schedulers", values, file)) for values in lists["schedulers"]]
    traces = [_trace(EntryReader("traces", values, file)) for values in lists["traces"]]
    specs = [_plain(EntryReader("parallel_spec", values, file), ParallelEntry) for values in lists["parallel_spec"]]
    models = [EntryReader("models", values, file) for values in lists["models"]]
    entries = Entries(schedulers, traces, specs, [_plain(reader, ModelEntry, 2) for reader in models])
    names = {name: [entry.name for entry in getattr(entries, name)] for name in Entries._fields}
    for where, given in names.items():
        for name in given:
            if given.count(name) > 1:
                fail(file, f"{where}: the name {name!r} stands twice")
    for reader, model in zip(models, entries.models, strict=True):
        for key, known in (
            ("parallel_specs", "parallel_spec"),
            ("scheduler_specs", "schedulers"),
            ("traces", "traces"),
        ):
            for name in getattr(model, key) or ():
                if name not in names[known]:
                    reader.fail(key, f"{shown(name)} is none of {known}; one of {', '.join(names[known])}")
    return entries


def _scheduler(reader: EntryReader) -> SchedulerEntry:
    keys = reader.take(_SchedulerKeys, 3)
    declared: Choice = fields_of(BenchmarkConfig)["scheduler_config"].metadata["choice"]
    settings: dict[str, Any] = {"scheduler_config_type": keys.scheduler}
    if "." in keys.scheduler:
        type_name = "CUSTOM"
    else:
        allowed = [name for name in declared.types if name != "CUSTOM"]
        type_name = reader.resolve("scheduler", declared, keys.scheduler, allowed)
        settings["scheduler_config_type"] = type_name
    prefix = declared.prefix(type_name)
    settings[f"{prefix}_max_num_seqs"] = keys.batch_size
    if reader.values.get("chunk_size", 0) is None:  # as where it is left out
        del reader.values["chunk_size"]
    settings |= reader.take_settings(declared.types[type_name], prefix)
    reader.close()
    return SchedulerEntry(keys.name, settings)


def _trace(reader: EntryReader) -> TraceEntry:
    has_trace_file = "trace_file" in reader.values
    keys = reader.take(_TraceKeys, 3)
    if not has_trace_file and keys.request_generator is None:
        reader.fail("trace_file", "this key is needed, or request_generator")
    settings, components = _components(reader, keys, has_trace_file)
    input_files: dict[str, str] = {}
    for config_type, prefix in components.values():
        taken = reader.take_settings(config_type, prefix, _NOT_KEYS)
        settings |= taken
        for name, f in fields_of(config_type).items():
            if f"{prefix}_{name}" in taken and f.metadata["setting"].is_input_file:
                input_files[name] = taken[f"{prefix}_{name}"]
    reader.close()
    if settings.get("length_generator_config_type") != "TRACE":
        return TraceEntry(keys.name, keys.start_qps, keys.max_seq_len, settings, None, input_files)
    if "trace_file" not in input_files:
        reader.fail("trace_file", "this key is needed")
    if keys.max_seq_len is None:
        reader.fail("max_seq_len", "this key is needed")
    cut_by = f"{components['length_generator'][1]}_max_tokens"
    return TraceEntry(
        keys.name, keys.start_qps, keys.max_seq_len, settings, None if cut_by in settings else cut_by, input_files
    )


def _components(
    reader: EntryReader, keys: _TraceKeys, has_trace_file: bool
) -> tuple[dict[str, Any], dict[str, tuple[type[Config], str]]]:
    """Settings that choose the generators; and their configs and prefixes by key of the entry."""
    declared: Choice = fields_of(BenchmarkConfig)["request_generator_config"].metadata["choice"]
    with_arrivals = [
        n for n, config_type in declared.types.items() if "interval_generator_config" in fields_of(config_type)
    ]
    name = reader.resolve("request_generator", declared, keys.request_generator or "SYNTHETIC", with_arrivals)
    generator_type, prefix = declared.types[name], declared.prefix(name)
    settings = {"request_generator_config_type": name, f"{prefix}_num_requests": keys.num_requests}
    components = {"request_generator": (generator_type, prefix)}
    length_generator = keys.length_generator or ("TRACE" if has_trace_file else None)
    for key, value in (("interval_generator", keys.interval_generator), ("length_generator", length_generator)):
        field = fields_of(generator_type).get(f"{key}_config")
        if field is None:
            if getattr(keys, key) is not None:
                reader.fail(key, f"{name} has none")
            continue
        if value is None:
            reader.fail(key, "this key is needed, or trace_file")
        part: Choice = field.metadata["choice"]
        allowed = [n for n in part.types if key != "interval_generator" or rate_setting(part.types[n])]
        chosen = reader.resolve(key, part, value, allowed)
        settings[f"{key}_config_type"] = chosen
        components[key] = part.types[chosen], part.prefix(chosen)
    return settings, components


def rate_setting(config_type: type[Config]) -> str | None:
    """The setting of an interval generator that its rate follows from; None where none does."""
    return next((name for name in RATE_SETTINGS if name in fields_of(config_type)), None)


def _plain(reader: EntryReader, config_type: type[EntryT], num_needed: int = 3) -> EntryT:
    entry = reader.take(config_type, num_needed)
    reader.close()
    return entry


def _list(content: Mapping[Any, Any], name: str, file: str) -> list[Any]:
    value = content.get(name)
    if not isinstance(value, list) or not value:
        problem = "this key is needed" if name not in content else f"{shown(value)} is not allowed"
        fail(file, f"{name}: {problem}; a list of at least one entry")
    return value
