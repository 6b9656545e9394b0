"""A config from settings by their bare names, as the Python API takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sarathi.config.setting import Choice, Config, fields_of
from sarathi.config.system import SystemConfig
from sarathi.config.tree import suggestion
from sarathi.errors import FieldError, shown


def system_config_from(model: str, settings: Mapping[str, Any]) -> SystemConfig:
    """The config that settings by field name describe; `scheduler` and `executor` take the name of a type.

    A scheduler may also be an import path, as in "my_module.MyScheduler". Raises ValueError naming the setting, also
    for one that the chosen types do not have.
    """
    left = {"model": model, **settings}
    types: dict[str, type[Config]] = {}
    for component, f in fields_of(SystemConfig).items():
        if "choice" in f.metadata:
            keyword = component.removesuffix("_config")
            types[component] = _type_of(keyword, left.pop(keyword, None), f.metadata["choice"], left)
        else:
            types[component] = f.metadata["component"]
    homes = {name: component for component, config_type in types.items() for name in fields_of(config_type)}
    for name in left:
        if name not in homes:
            chosen = ", ".join(config_type.__name__ for config_type in types.values())
            raise FieldError(name, f"unknown setting{suggestion(name, homes)} (of {chosen})")
    components: dict[str, Any] = {
        component: config_type(**{name: value for name, value in left.items() if homes[name] == component})
        for component, config_type in types.items()
    }
    return SystemConfig(**components)


def _type_of(keyword: str, name: Any, declared: Choice, left: dict[str, Any]) -> type[Config]:
    if name is None:
        name = declared.default
    if not isinstance(name, str):
        raise FieldError(keyword, f"{shown(name)} is not allowed; one of {', '.join(declared.types)}")
    if "." in name and "CUSTOM" in declared.types:
        left.setdefault("class_path", name)
        return declared.types["CUSTOM"]
    try:
        return declared.types[declared.resolve(name)]
    except ValueError as error:
        raise FieldError(keyword, str(error)) from None
