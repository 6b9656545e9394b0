"""The tree of configs seen as flat keys: `<component>_config_<field>`, and a config built from such keys.

Flags and YAML both end here, so that a value is parsed and checked in one place.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from sarathi.config.setting import (
    Choice,
    Config,
    SettingError,
    check_value,
    fields_of,
    parse_text,
)

logger = logging.getLogger(__name__)
ConfigT = TypeVar("ConfigT", bound=Config)


class Section(NamedTuple):
    """A config type of the tree, the prefix of its keys, and the choices that lead to it, outermost first."""

    prefix: str
    config_type: type[Config]
    chosen_by: tuple[tuple[str, str], ...]  # (key of the choice, name of the type)


class Given(NamedTuple):
    """A value somebody gave, a text still to be parsed or already typed, and the file it stands in, if any."""

    value: Any
    file: str | None = None


class FlagError(ValueError):
    """A fault of a given value: one line that names the flag."""

    def __init__(self, key: str, text: str, file: str | None = None) -> None:
        super().__init__(f"--{key}: {text}" + (f" (in {file})" if file else ""))


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


def build(config_type: type[ConfigT], given: Mapping[str, Given]) -> ConfigT:
    """The config that the given keys describe, defaults elsewhere.

    Raises FlagError for a value that is not allowed. A setting of a type that is not chosen is checked as well, and
    a warning says that it has no effect.
    """
    found = sections(config_type)
    settings, choices = settings_by_key(found), choices_by_key(found)
    chosen: dict[str, str] = {}
    values: dict[str, Any] = {}
    for key, item in given.items():
        if key in choices:
            chosen[key] = _resolve(key, item, choices[key][1], values)
        elif key in settings:
            values[key] = _typed(key, item, *settings[key])
        else:
            raise FlagError(key, f"unknown setting{suggestion(key, [*settings, *choices])}", item.file)
    used: set[str] = set()
    config = _build(config_type, "", values, chosen, given, used)
    _warn_unused(given, used, settings, choices, chosen)
    return config


def _resolve(key: str, item: Given, declared: Choice, values: dict[str, Any]) -> str:
    name = item.value
    if not isinstance(name, str):
        raise FlagError(key, f"{name!r} is not allowed; one of {', '.join(declared.types)}", item.file)
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
    except SettingError as error:
        raise FlagError(key, f"{error.value!r} {error.problem}; {error.allowed}", item.file) from None


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
            type_name = chosen.setdefault(type_key, declared.resolve(declared.default))
            used.add(type_key)
            arguments[name] = _build(declared.types[type_name], declared.prefix(type_name), values, chosen, given, used)
        elif key in values:
            used.add(key)
            arguments[name] = values[key]
            if f.metadata["setting"].is_input_file and values[key] is not None and not os.path.isfile(values[key]):
                raise FlagError(key, f"{values[key]!r} is not a file", given[key].file)
    try:
        return config_type(**arguments)
    except SettingError as error:
        key = join(prefix, error.field)
        file = given[key].file if key in given else None
        raise FlagError(key, f"{error.value!r} {error.problem}; {error.allowed}", file) from None


def _warn_unused(
    given: Mapping[str, Given],
    used: set[str],
    settings: Mapping[str, tuple[Section, str]],
    choices: Mapping[str, tuple[Section, Choice]],
    chosen: Mapping[str, str],
) -> None:
    without_effect: dict[str, list[str]] = {}
    for key in given:
        if key not in used:
            section = (settings.get(key) or choices[key])[0]
            decisive = next(type_key for type_key, _ in reversed(section.chosen_by) if type_key in used)
            without_effect.setdefault(decisive, []).append(f"--{key}")
    for type_key, flags in without_effect.items():
        logger.warning("no effect with --%s %s: %s", type_key, chosen[type_key], ", ".join(flags))
