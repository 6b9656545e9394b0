"""How a setting is declared, and the one place that checks a value against its declaration.

Knows nothing of particular settings, of flags or of files.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from sarathi.errors import FieldError, shown

_KIND_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "non-empty text",
    list: "a list (JSON)",
    dict: "a mapping (JSON)",
}
_NO_VALUE_NAMES = ("null", "none")
MAX_NUMBER = 10**9  # of a setting that declares no other limit: more tokens or seconds than any run has
MAX_SEED = 2**32 - 1  # numpy's


@dataclass(frozen=True)
class Setting:
    """What is known of a setting besides name, type and default. Limits hold for its numbers."""

    help: str
    unit: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float = MAX_NUMBER
    below: float | None = None
    is_input_file: bool = False  # must exist when the command line selects it
    no_effect: str = ""  # why it does nothing though it is accepted; said where it differs from its default
    no_effect_with: tuple[str, ...] = ()  # the types of executor for which alone that holds; empty: for every one
    needs: str = ""  # the setting beside it without whose value it does nothing


@dataclass(frozen=True)
class Choice:
    """A component of which several types exist, chosen by name.

    The settings of type T are the flags `--<t>_<suffix>_<field>`. `aliases` are further names for a type, or
    for one that a function chooses whenever it is asked.
    """

    types: Mapping[str, type[Config]]
    default: str
    suffix: str
    help: str
    aliases: Mapping[str, str | Callable[[], str]] = field(default_factory=dict)

    def prefix(self, type_name: str) -> str:
        return f"{type_name.lower()}_{self.suffix}"

    def resolve(self, name: str) -> str:
        """The type's own name. Raises ValueError saying which names there are."""
        key = name.upper()
        alias = self.aliases.get(key, key)
        key = alias if isinstance(alias, str) else alias()
        if key not in self.types:
            raise ValueError(f"{shown(name)} is not known; one of {', '.join((*self.aliases, *self.types))}")
        return key

    def name_of(self, config: Config) -> str:
        return next(name for name, config_type in self.types.items() if type(config) is config_type)


def setting(default: Any, help: str, **properties: Any) -> Any:
    """A dataclass field with its declaration; `properties` are the other fields of Setting."""
    metadata = {"setting": Setting(help, **properties)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def component(config_type: type[Config]) -> Any:
    """A dataclass field that holds another config."""
    return field(default_factory=config_type, metadata={"component": config_type})


def choice(types: Mapping[str, type[Config]], default: str, suffix: str, help: str, **properties: Any) -> Any:
    """A dataclass field that holds one of several types of config; `properties` are further fields of Choice."""
    declared = Choice(types, default, suffix, help, **properties)
    return field(default_factory=lambda: types[declared.resolve(default)](), metadata={"choice": declared})


@dataclass(frozen=True)
class Config:
    """Base of every config: frozen, and valid once constructed."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if "setting" in f.metadata:
                object.__setattr__(self, f.name, check_value(type(self), f.name, value))
            elif not isinstance(value, hints_of(type(self))[f.name]):
                self.reject(f.name, f"a {hints_of(type(self))[f.name].__name__}")
        self.check()

    def check(self) -> None:
        """Rules that tie several fields together; a subclass that has some calls `reject`."""

    def reject(self, name: str, allowed: str) -> NoReturn:
        raise FieldError(name, f"{shown(getattr(self, name))} is not allowed; {allowed}", f"{type(self).__name__}.")

    def require(self, name: str, what: str) -> None:
        """Refuse the config if the setting has no value."""
        if getattr(self, name) is None:
            raise FieldError(name, f"{what} is needed", f"{type(self).__name__}.")


def chosen_type(config: Config, name: str) -> str:
    """The name of the type that is chosen in the field `name`."""
    declared: Choice = fields_of(type(config))[name].metadata["choice"]
    return declared.name_of(getattr(config, name))


def flag_prefix(config: Config, name: str) -> str:
    """What the flags of the config in the field `name` begin with, whether a component or a chosen type."""
    metadata = fields_of(type(config))[name].metadata
    return metadata["choice"].prefix(chosen_type(config, name)) if "choice" in metadata else name


def as_typed(value: Any) -> str:
    """A value as one types it on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def default_of(f: dataclasses.Field) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


@functools.cache
def hints_of(config_type: type[Config]) -> dict[str, Any]:
    return get_type_hints(config_type)


@functools.cache
def fields_of(config_type: type[Config]) -> dict[str, dataclasses.Field]:
    return {f.name: f for f in dataclasses.fields(config_type)}


@functools.cache
def value_types(config_type: type[Config], name: str) -> tuple[tuple[type, ...], tuple[str, ...], bool]:
    """The types a setting accepts, the words it accepts (of a Literal), and whether it accepts None."""
    hint = hints_of(config_type)[name]
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    words = tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))
    kinds = tuple(part for part in parts if isinstance(part, type) and part is not types.NoneType)
    return kinds, words, types.NoneType in parts


def describe_allowed(config_type: type[Config], name: str) -> str:
    kinds, words, optional = value_types(config_type, name)
    declared: Setting = fields_of(config_type)[name].metadata["setting"]
    texts = []
    limits = [
        f"{text} {limit:,}" if isinstance(limit, int) else f"{text} {limit:g}"
        for text, limit in (
            ("above", declared.above),
            ("below", declared.below),
            ("at least", declared.at_least),
            ("at most", declared.at_most if declared.below is None else None),
        )
        if limit is not None
    ]
    of = " of " if limits[0].startswith("at") else " "
    for kind in kinds:
        texts.append(_KIND_NAMES[kind] + (of + " and ".join(limits) if kind in (int, float) else ""))
    if words:
        texts.append(("one of " if len(words) > 1 else "") + ", ".join(words))
    if optional:
        texts.append("null")
    return " or ".join(texts)


def check_value(config_type: type[Config], name: str, value: Any) -> Any:
    """The value, an integer made a float where a float is declared. Raises FieldError."""
    kinds, words, optional = value_types(config_type, name)
    declared: Setting = fields_of(config_type)[name].metadata["setting"]
    if (value is None and optional) or (isinstance(value, str) and value in words):
        return value
    if float in kinds and type(value) is int and value.bit_length() < 64:  # a longer one is not allowed below
        value = float(value)
    allowed = type(value) in kinds and value != ""
    if allowed and isinstance(value, str) and not is_clean_text(value):
        text = f"{shown(value)} is not allowed; text without NUL and in whole characters"
        raise FieldError(name, text, f"{config_type.__name__}.")
    if allowed and isinstance(value, float):
        allowed = math.isfinite(value)
    if allowed and isinstance(value, int | float):
        allowed = (
            (declared.at_least is None or value >= declared.at_least)
            and (declared.above is None or value > declared.above)
            and value <= declared.at_most
            and (declared.below is None or value < declared.below)
        )
    if not allowed:
        raise _not_allowed(config_type, name, value)
    return value


def is_clean_text(value: object) -> bool:
    """Whether this is text that can name a file: without NUL and halves of characters, as stray bytes become."""
    try:
        return isinstance(value, str) and "\0" not in value and bool(value.encode())
    except UnicodeEncodeError:
        return False


def parse_text(config_type: type[Config], name: str, text: str) -> Any:
    """The value a text stands for, as typed on a command line. Raises FieldError."""
    kinds, words, optional = value_types(config_type, name)
    if optional and text.lower() in _NO_VALUE_NAMES:
        return None
    for word in words:
        if text.lower() == word.lower():
            return word
    for kind in kinds:
        try:
            return _parse_kind(kind, text)
        except (ValueError, RecursionError):  # JSON may be nested too deeply
            pass
    raise _not_allowed(config_type, name, text)


def _not_allowed(config_type: type[Config], name: str, value: object) -> FieldError:
    text = f"{shown(value)} is not allowed; {describe_allowed(config_type, name)}"
    return FieldError(name, text, f"{config_type.__name__}.")


def _parse_kind(kind: type, text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if kind in (list, dict):
        import json

        return json.loads(text)
    return kind(text)
