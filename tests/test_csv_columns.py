"""Columns of numbers in CSV files: what is read, and the one line that refuses the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sarathi.csv_columns import Row, read_rows


def read(tmp_path: Path, text: str | bytes, *columns: str) -> list[Row]:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_rows(path, columns))


def test_byte_order_mark_blank_lines_and_blanks_around_cells(tmp_path: Path) -> None:
    rows = read(tmp_path, "\ufeffa,b\n\n0,3.0\r\n  \n,,\n 1.5 , 7 \n\n", "a", "b")
    assert rows == [Row(3, [0.0, 3.0]), Row(6, [1.5, 7.0])]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    assert read(tmp_path, "ratio, b ,x,a\n9,1,junk,2\n", "a", "b") == [Row(2, [2.0, 1.0])]


def test_a_cell_with_a_line_break_counts_as_lines(tmp_path: Path) -> None:
    assert [row.line for row in read(tmp_path, 'a,note\n1,"x\ny"\n2,z\n', "a")] == [3, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a,b\n1,1\n\n-5,1\n",
            "table.csv, line 4, column a: -5 is not allowed; a number from 0 to 1,000,000,000,000,000",
        ),
        ("a,b\n0,-0.5\n", "line 2, column b: -0.5 is not allowed"),
        ("a,b\n0,1\nmany,1\n", "line 3, column a: 'many' is not a number"),
        ("a,b\n0\n", "line 2, column b: '' is not a number"),
        ("a,b\n1_000,1\n", "line 2, column a: '1_000' is not a number"),
        ("a,b\n0,١٢\n", "line 2, column b: '١٢' is not a number"),
        ("a,b\nnan,1\n", "line 2, column a: nan is not allowed"),
        ("a,b\n0,inf\n", "line 2, column b: inf is not allowed"),
        ("a,b\n0,1e16\n", "line 2, column b: 1e+16 is not allowed"),
        ("b\n0\n", "table.csv, line 1: column a is missing; it has b"),
        ("", "table.csv: empty; a header with a,b is needed"),
        ("\n\n", "table.csv: empty"),
        ("a,b\n", "table.csv: no rows under the header a,b"),
        (b"\xff\xfea\x00", "table.csv: not a UTF-8 text file"),
        ("a,b\n" + "9" * 200_000, "table.csv, line 2: field larger than field limit"),
    ],
)
def test_a_bad_table_is_one_line_naming_file_line_and_column(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read(tmp_path, text, "a", "b")
    assert said in str(error.value) and str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "nowhere.csv", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            list(read_rows(path, ["a"]))
        assert str(error.value) == f"{path}: cannot be read ({why})"
