"""One entry of the search's YAML file, whose keys are taken and checked one after the other.

Knows how settings are declared, and no key by name but `name`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn, TypeVar

from sarathi.config import Config
from sarathi.config.setting import Choice, check_value, fields_of, parse_text
from sarathi.config.tree import suggestion
from sarathi.errors import FieldError, FlagError, shown

EntryT = TypeVar("EntryT", bound=Config)


class EntryReader:
    """One entry's keys, taken one after the other; what is left at the end is not known."""

    def __init__(self, where: str, values: Any, file: str) -> None:
        if not isinstance(values, dict):
            fail(file, f"{where}: {shown(values)} is no mapping of keys")
        self._file = file
        self.values: dict[Any, Any] = dict(values)
        self._known: list[str] = []
        self._where = f"{where}, {shown(values['name'])}" if "name" in values else where

    def fail(self, key: str, text: str) -> NoReturn:
        fail(self._file, f"{self._where}: {key}: {text}")

    def take(self, config_type: type[EntryT], num_needed: int) -> EntryT:
        """The keys that `config_type` declares, of which the first `num_needed` must be there."""
        names = list(fields_of(config_type))
        self._known += names
        for name in names[:num_needed]:
            if name not in self.values:
                self.fail(name, "this key is needed")
        try:
            return config_type(**{name: self.values.pop(name) for name in names if name in self.values})
        except FieldError as error:
            self.fail(error.field, error.text)

    def take_settings(self, config_type: type[Config], prefix: str, without: Collection[str] = ()) -> dict[str, Any]:
        """The keys that are settings of `config_type` but those in `without`, by key of the run's flag."""
        settings = {}
        for name, f in fields_of(config_type).items():
            if "setting" not in f.metadata or name in without:
                continue
            self._known.append(name)
            if name in self.values:
                settings[f"{prefix}_{name}"] = self._typed(config_type, name, self.values.pop(name))
        return settings

    def _typed(self, config_type: type[Config], name: str, value: Any) -> Any:
        try:
            return check_value(
                config_type, name, parse_text(config_type, name, value) if isinstance(value, str) else value
            )
        except FieldError as error:
            self.fail(name, error.text)

    def resolve(self, key: str, declared: Choice, name: str, allowed: Sequence[str]) -> str:
        """The type's name in `declared`, one of `allowed`."""
        if name.upper() not in allowed:
            self.fail(key, f"{shown(name)} is not known; one of {', '.join(allowed)}")
        try:
            return declared.resolve(name)
        except ValueError as error:
            self.fail(key, str(error))

    def close(self) -> None:
        for key in self.values:
            self.fail(shown(key).strip("'"), f"not a key of this entry{suggestion(str(key), self._known)}")


def fail(file: str, text: str) -> NoReturn:
    raise FlagError("config-path", text, file)
