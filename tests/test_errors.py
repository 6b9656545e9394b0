"""How faults are told: one line, by parameter from Python and by flag on the command line."""

from __future__ import annotations

import pytest

from sarathi.errors import FieldError, FlagError, naming, shown


def test_every_fault_is_one_line() -> None:
    assert str(FieldError("file", "a\nb.json is empty", owner="Config.")) == "Config.file: a b.json is empty"
    assert str(FlagError("seed", "a\r\nb", file="c\nd.yaml")) == "--seed: a b (in c d.yaml)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FieldError("file", "'x' is empty"), "--part_config_file: 'x' is empty"),
        (ValueError("x.csv, line 3: no"), "--part_config_trace_file: x.csv, line 3: no"),
        (FlagError("seed", "-1 is not allowed"), "--seed: -1 is not allowed"),  # named further inside
    ],
)
def test_what_is_not_allowed_is_named_by_its_flag(error: ValueError, said: str) -> None:
    with pytest.raises(FlagError) as caught, naming("part_config", "trace_file"):
        raise error
    assert str(caught.value) == said


def test_what_names_no_field_passes_where_none_is_meant() -> None:
    with pytest.raises(ValueError, match=r"^a fault of ours$"), naming("part_config"):
        raise ValueError("a fault of ours")
    with pytest.raises(KeyError), naming("part_config", "field"):
        raise KeyError("x")


def test_long_values_are_cut() -> None:
    laughs: list = ["ha"] * 10
    for _ in range(30):
        laughs = [laughs] * 10
    values = {"text": "x" * 10**6, "number": 10**5000, "nested": [10**5000], "aliases": laughs, "loop": {}}
    values["loop"] = {"self": values}
    for value in (*values.values(), values):
        assert 0 < len(shown(value)) <= 220
    assert shown("a\nb") == r"'a\nb'" and shown([1, {"a": None}]) == "[1, {'a': None}]"
    assert len(str(FlagError("key", "x" * 10**6))) < 1600
