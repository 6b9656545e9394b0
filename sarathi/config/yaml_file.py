"""Configs as YAML: what a run writes, and what `--config` reads, nested by component or flat like flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sarathi.config.setting import Choice, Config, chosen_type, fields_of
from sarathi.config.tree import Given, choices_by_key, join, sections, settings_by_key, suggestion
from sarathi.errors import FlagError, shown


def to_dict(config: Config) -> dict[str, Any]:
    """Every setting, defaults too, nested by component; the type of a chosen component stands under `type`."""
    result: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if "choice" in f.metadata:
            result[f.name] = {"type": chosen_type(config, f.name), **to_dict(value)}
        elif "component" in f.metadata:
            result[f.name] = to_dict(value)
        else:
            result[f.name] = value
    return result


def to_yaml(config: Config) -> str:
    """The text of a config.yaml that `--config` reads back to an equal config."""
    import yaml

    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def read_yaml(path: str) -> dict[Any, Any]:
    """The mapping in a YAML file. Raises FlagError, one line, if there is none."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.load(file, _loader())
    except OSError as error:
        raise FlagError("config", f"cannot read {shown(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FlagError("config", f"{path!r} is not a text file in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise FlagError("config", f"{path!r} is not valid YAML{where}: {problem}") from None
    except RecursionError:
        raise FlagError("config", f"{path!r} is not valid YAML: it is nested too deeply") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:  # of PyYAML's constructors
        raise FlagError("config", f"{path!r} is not valid YAML: a value does not fit its type ({error})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise FlagError("config", f"{path!r} holds no mapping of settings")
    return content


def flatten(
    content: Mapping[Any, Any],
    config_type: type[Config],
    file: str,
    flags: Mapping[str, Given],
    defaults: Mapping[str, Any],
) -> dict[str, Given]:
    """The file's settings by flat key.

    Where the file does not say a component's type, it is that of `flags`, else of the file's flat keys, else of
    `defaults`.
    """
    found = sections(config_type)
    flat_keys = {*settings_by_key(found), *choices_by_key(found)}
    result: dict[str, Given] = {}

    def put(key: str, value: Any) -> None:
        if key in result:
            raise FlagError(key, "given twice", file)
        result[key] = Given(value, file)

    def walk(mapping: Mapping[Any, Any], config: type[Config], prefix: str, path: str) -> None:
        fields = fields_of(config)
        for key, value in mapping.items():
            f = fields.get(key)
            is_nested = f is not None and "setting" not in f.metadata
            if is_nested and not isinstance(value, dict):
                raise FlagError("config", f"{path}{key} is {shown(value)}; a mapping of its settings is needed", file)
            if is_nested and f is not None and "choice" in f.metadata:
                walk_choice(value, f.metadata["choice"], key, f"{path}{key}.")
            elif is_nested and f is not None:
                walk(value, f.metadata["component"], key, f"{path}{key}.")
            elif f is not None:
                put(join(prefix, key), value)
            elif not prefix and key in flat_keys:
                put(key, value)
            else:
                names = list(fields) + ([] if prefix else sorted(flat_keys))
                raise FlagError("config", f"{path}{key} is not known{suggestion(str(key), names)}", file)

    def walk_choice(value: dict[Any, Any], declared: Choice, name: str, path: str) -> None:
        key = f"{name}_type"
        if "type" in value:
            put(key, value["type"])
        chosen = flags[key].value if key in flags else content.get(key, defaults.get(key, declared.default))
        type_name = value.get("type", chosen)
        if isinstance(type_name, str) and "." in type_name:
            type_name = "CUSTOM"
        try:
            type_name = declared.resolve(str(type_name))
        except ValueError as error:
            raise FlagError(key, str(error), file) from None
        settings = {key: item for key, item in value.items() if key != "type"}
        walk(settings, declared.types[type_name], declared.prefix(type_name), path)

    walk(content, config_type, "", "")
    return result


def _loader() -> Any:
    """SafeLoader, but dates and 1:30 stay text and a key that stands twice is an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode):
                    if key_node.value in seen:
                        problem = f"{key_node.value} stands twice"
                        raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                    seen.add(key_node.value)
            return super().construct_mapping(node, deep)

        def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
            tag = super().resolve(kind, value, implicit)
            is_text = kind is yaml.ScalarNode and (tag.endswith(":timestamp") or ":" in value)
            return self.DEFAULT_SCALAR_TAG if is_text else tag

    return Loader
