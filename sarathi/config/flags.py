"""The command line of a config tree: one flag a setting, grouped by component in --help."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from sarathi.config.benchmark import BenchmarkConfig, without_effect
from sarathi.config.setting import Choice, Config, Setting, as_typed, default_of, fields_of, value_types
from sarathi.config.tree import (
    NO_DEFAULTS,
    Built,
    ConfigT,
    Given,
    Section,
    build,
    join,
    sections,
    suggestion,
)
from sarathi.config.yaml_file import flatten, read_yaml
from sarathi.errors import FlagError, one_line, shown

logger = logging.getLogger(__name__)
PROGRAM = "python -m sarathi.benchmark.main"
_NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


def parse_args(argv: Sequence[str] | None = None) -> BenchmarkConfig:
    """The config that the flags in `argv` (default: of this process) and their `--config` file describe.

    A fault is one line on stderr that names the flag, and SystemExit(2). Settings that do nothing yet, or nothing
    with the chosen types, are logged as warnings.
    """
    with _exit_on_fault():
        return config_from_args(_arguments(argv), BenchmarkConfig, PROGRAM)


def parse_args_for_each(
    argv: Sequence[str] | None, key: str, names: Sequence[str], *, prog: str, about: str, defaults: Mapping[str, Any]
) -> list[BenchmarkConfig]:
    """A config for each of the `names` of the choice `key`; where flags or file name one, for that one alone.

    `defaults` (by key of the flag) stand where neither flags nor file say anything. Faults as in `parse_args`, and
    warnings once, of what has no effect in any of the configs.
    """
    with _exit_on_fault():
        parser = make_parser(BenchmarkConfig, prog, {**defaults, key: "each in turn"}, about)
        given = _given(_arguments(argv), BenchmarkConfig, parser, defaults)
        choices = [given[key]] if key in given else [Given(name) for name in names]
        built = [build(BenchmarkConfig, {**given, key: choice}, defaults) for choice in choices]
    _warn(built)
    return [config for config, _ in built]


def configs_from_args(
    argv: Sequence[str], variants: Sequence[Mapping[str, Given]], prog: str, defaults: Mapping[str, Any] = NO_DEFAULTS
) -> list[BenchmarkConfig]:
    """A config for each of the `variants`, whose settings by key win over those of a `--config` file.

    Raises ValueError as `config_from_args`, and where a flag sets what a variant sets. Warnings come once, as in
    `parse_args_for_each`.
    """
    given = _given(argv, BenchmarkConfig, make_parser(BenchmarkConfig, prog, defaults), defaults)
    built = []
    for variant in variants:
        for key in variant:
            if key in given and given[key].file is None:
                raise FlagError(key, f"{variant[key].file or prog} sets this; leave the flag out")
        built.append(build(BenchmarkConfig, {**given, **variant}, defaults))
    _warn(built)
    return [config for config, _ in built]


def config_from_args(argv: Sequence[str], config_type: type[ConfigT], prog: str) -> ConfigT:
    """As `parse_args` for any tree of settings, and a fault is a ValueError."""
    parser = make_parser(config_type, prog)
    built = build(config_type, _given(argv, config_type, parser, NO_DEFAULTS))
    _warn([built])
    return built.config


def _arguments(argv: Sequence[str] | None) -> Sequence[str]:
    return sys.argv[1:] if argv is None else argv


@contextmanager
def _exit_on_fault() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        print("error:", one_line(str(error)), file=sys.stderr)
        raise SystemExit(2) from None


def _given(
    argv: Sequence[str], config_type: type[Config], parser: argparse.ArgumentParser, defaults: Mapping[str, Any]
) -> dict[str, Given]:
    """What the flags say and, where they are silent, the file they name."""
    namespace, rest = parser.parse_known_args(_join_negative_numbers(argv))
    if rest:
        raise ValueError(_unknown(rest, parser))
    given = vars(namespace)
    path = given.pop("config", None)
    flags = {key: Given(text) for key, text in given.items()}
    from_file = {} if path is None else flatten(read_yaml(path), config_type, path, flags, defaults)
    return {**from_file, **flags}


def _warn(built: Sequence[Built[Any]]) -> None:
    """Say what was given in vain: what none of the configs uses, and what does nothing yet."""
    flags: dict[str, list[str]] = {}
    for key, (type_key, _) in built[0].unused.items():
        if all(key in unused for _, unused in built):
            names = dict.fromkeys(unused[key][1] for _, unused in built)
            flags.setdefault(f"--{type_key} {', '.join(names)}", []).append(f"--{key}")
    for choice, without in flags.items():
        logger.warning("no effect with %s: %s", choice, ", ".join(without))
    for notice in dict.fromkeys(notice for config, _ in built for notice in without_effect(config)):
        logger.warning("%s", notice)


def make_parser(
    config_type: type[Config], prog: str, defaults: Mapping[str, Any] = NO_DEFAULTS, about: str = ""
) -> argparse.ArgumentParser:
    """A parser that leaves every value as text, and absent flags out of its namespace.

    --help shows `about`, and `defaults` (by key of the flag) in place of the settings' own.
    """
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [--config FILE.yaml] [--<setting> VALUE ...]",
        description=f"{about}\n\n".lstrip()
        + "A switch takes --flag, --no-flag or --flag true|false; null stands for no value.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.RawTextHelpFormatter(prog, max_help_position=8, width=200),
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings; flags win over it.")
    chosen_by_flag: set[str] = set()  # several parents may share a choice
    for section in sections(config_type).values():
        condition = None
        if section.chosen_by:
            key, name = section.chosen_by[-1]
            condition = f"with --{key} {name}"
        group = parser.add_argument_group(section.prefix or "run", condition)
        for name, f in fields_of(section.config_type).items():
            if "setting" in f.metadata:
                _add_setting(group, section, name, defaults)
            elif "choice" in f.metadata and name not in chosen_by_flag:
                chosen_by_flag.add(name)
                _add_choice(group, f"{name}_type", f.metadata["choice"], defaults)
    return parser


def _add_setting(group: argparse._ArgumentGroup, section: Section, name: str, defaults: Mapping[str, Any]) -> None:
    f = fields_of(section.config_type)[name]
    declared: Setting = f.metadata["setting"]
    key = join(section.prefix, name)
    kinds, words, _ = value_types(section.config_type, name)
    notes = [text for text in (declared.unit, f"default {as_typed(defaults.get(key, default_of(f)))}") if text]
    if declared.no_effect:
        only = f" with {' and '.join(declared.no_effect_with)}" if declared.no_effect_with else ""
        notes.append(f"no effect{only}: {declared.no_effect}")
    help = f"{declared.help.rstrip('.')} ({'; '.join(notes)})".replace("%", "%%")
    metavar = "|".join([*words, *(kind.__name__.upper() for kind in kinds if kind is not str or not words)])
    if bool in kinds:
        group.add_argument(f"--{key}", nargs="?", const="true", metavar="true|false", help=help)
        group.add_argument(f"--no-{key}", dest=key, action="store_const", const="false", help=argparse.SUPPRESS)
    else:
        group.add_argument(f"--{key}", metavar=metavar, help=help)


def _add_choice(group: argparse._ArgumentGroup, key: str, declared: Choice, defaults: Mapping[str, Any]) -> None:
    names = "|".join((*declared.aliases, *declared.types))
    default = defaults.get(key, declared.default)
    group.add_argument(f"--{key}", metavar=names, help=f"{declared.help.rstrip('.')} (default {default})")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument ").replace(": expected one argument", ": a value is needed"))


def _unknown(rest: Sequence[str], parser: argparse.ArgumentParser) -> str:
    flag = next((text for text in rest if text.startswith("-")), None)
    if flag is None:
        return f"{shown(rest[0])} belongs to no flag"
    flag = flag.split("=")[0]
    return f"{flag}: unknown flag{suggestion(flag, parser._option_string_actions)}"


def _join_negative_numbers(argv: Sequence[str]) -> list[str]:
    """`--flag -1e-3` as `--flag=-1e-3`: argparse takes such a value for a flag."""
    joined: list[str] = []
    for text in argv:
        if _NEGATIVE_NUMBER.match(text) and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined
