"""The tree of configs seen as flat keys: `<component>_config_<field>`, and a config built from such keys.

Flags and YAML both end here, so that a value is parsed and checked in one place.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from sarathi.config.setting import Choice, Config, check_value, fields_of, parse_text
from sarathi.errors import FieldError, FlagError, shown

ConfigT = TypeVar("ConfigT", bound=Config)
NO_DEFAULTS: Mapping[str, Any] = types.MappingProxyType({})


class Section(NamedTuple):
    """A config type of the tree, the prefix of its keys, and the choices that lead to it, outermost first."""

    prefix: str
    config_type: type[Config]
    chosen_by: tuple[tuple[str, str], ...]  # (key of the choice, name of the type)


class Given(NamedTuple):
    """A value somebody gave, a text still to be parsed or already typed, and the file it stands in, if any."""

    value: Any
    file: str | None = None


class Built(NamedTuple, Generic[ConfigT]):
    """A config, and what was given that it does not use: by key, the choice that decided so and what is chosen."""

    config: ConfigT
    unused: dict[str, tuple[str, str]]


def join(prefix: str, name: str) -> str:
    return f"{prefix}_{name}" if prefix else name


def sections(config_type: type[Config]) -> dict[str, Section]:
    """Every config type that can occur, chosen or not, by prefix; one that several parents share is listed once."""
    found: dict[str, Section] = {}
    for section in _walk(config_type, "", ()):
        found.setdefault(section.prefix, section)
    return found


def _walk(config_type: type[Config], prefix: str, chosen_by: tuple[tuple[str, str], ...]) -> Iterator[Section]:
    yield Section(prefix, config_type, chosen_by)
    for f in fields_of(config_type).values():
        if "component" in f.metadata:
            yield from _walk(f.metadata["component"], f.name, chosen_by)
        elif "choice" in f.metadata:
            declared: Choice = f.metadata["choice"]
            for type_name, chosen in declared.types.items():
                yield from _walk(chosen, declared.prefix(type_name), (*chosen_by, (f"{f.name}_type", type_name)))


def settings_by_key(found: Mapping[str, Section]) -> dict[str, tuple[Section, str]]:
    return {
        join(section.prefix, name): (section, name)
        for section in found.values()
        for name, f in fields_of(section.config_type).items()
        if "setting" in f.metadata
    }


def choices_by_key(found: Mapping[str, Section]) -> dict[str, tuple[Section, Choice]]:
    return {
        f"{name}_type": (section, f.metadata["choice"])
        for section in found.values()
        for name, f in fields_of(section.config_type).items()
        if "choice" in f.metadata
    }


def suggestion(key: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def build(
    config_type: type[ConfigT], given: Mapping[str, Given], defaults: Mapping[str, Any] = NO_DEFAULTS
) -> Built[ConfigT]:
    """The config that the given keys describe, elsewhere `defaults` by key, elsewhere the settings' own.

    Raises FlagError for a value that is not allowed, also where it is a setting of a type that is not chosen.
    """
    found = sections(config_type)
    settings, choices = settings_by_key(found), choices_by_key(found)
    chosen: dict[str, str] = {}
    values: dict[str, Any] = {}
    layered = {**{key: Given(value) for key, value in defaults.items()}, **given}
    for key, item in layered.items():
        if key in choices:
            chosen[key] = _resolve(key, item, choices[key][1], values)
        elif key in settings:
            values[key] = _typed(key, item, *settings[key])
        else:
            raise FlagError(key, f"unknown setting{suggestion(key, [*settings, *choices])}", item.file)
    used: set[str] = set()
    config = _build(config_type, "", values, chosen, layered, used)
    unused = {}
    for key in given:
        if key not in used:
            section = (settings.get(key) or choices[key])[0]
            decisive = next(type_key for type_key, _ in reversed(section.chosen_by) if type_key in used)
            unused[key] = decisive, chosen[decisive]
    return Built(config, unused)


def _resolve(key: str, item: Given, declared: Choice, values: dict[str, Any]) -> str:
    name = item.value
    if not isinstance(name, str):
        raise FlagError(key, f"{shown(name)} is not allowed; one of {', '.join(declared.types)}", item.file)
    if "." in name and "CUSTOM" in declared.types:
        values.setdefault(join(declared.prefix("CUSTOM"), "class_path"), name)
        return "CUSTOM"
    try:
        return declared.resolve(name)
    except ValueError as error:
        raise FlagError(key, str(error), item.file) from None


def _typed(key: str, item: Given, section: Section, name: str) -> Any:
    try:
        value = item.value
        if isinstance(value, str):
            value = parse_text(section.config_type, name, value)
        return check_value(section.config_type, name, value)
    except FieldError as error:
        raise FlagError(key, error.text, item.file) from None


def _build(
    config_type: type[ConfigT],
    prefix: str,
    values: Mapping[str, Any],
    chosen: dict[str, str],
    given: Mapping[str, Given],
    used: set[str],
) -> ConfigT:
    arguments: dict[str, Any] = {}
    for name, f in fields_of(config_type).items():
        key = join(prefix, name)
        if "component" in f.metadata:
            arguments[name] = _build(f.metadata["component"], name, values, chosen, given, used)
        elif "choice" in f.metadata:
            declared: Choice = f.metadata["choice"]
            type_key = f"{name}_type"
            if type_key not in chosen:
                chosen[type_key] = declared.resolve(declared.default)
            type_name = chosen[type_key]
            used.add(type_key)
            arguments[name] = _build(declared.types[type_name], declared.prefix(type_name), values, chosen, given, used)
        elif key in values:
            used.add(key)
            arguments[name] = values[key]
            if f.metadata["setting"].is_input_file and values[key] is not None and not os.path.isfile(values[key]):
                raise FlagError(key, f"{shown(values[key])} is not a file", given[key].file)
    try:
        return config_type(**arguments)
    except FieldError as error:
        key = join(prefix, error.field)
        file = given[key].file if key in given else None
        raise FlagError(key, error.text, file) from None
