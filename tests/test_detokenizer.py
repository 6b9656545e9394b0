"""Text that grows with its tokens: whole characters at once, nothing that changes later, a few tokens decoded again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarathi.engine.detokenizer import MAX_HELD, REPLACEMENT, Decoder, Detokenizer, find_stop, num_held_back

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "Hello, world!  Two spaces,\n\ttabs and a trailing one ",
    "😀 emoji 👩‍👩‍👧‍👦 with joiners and 🏳️‍🌈 flags 🇮🇳🇩🇪🇯🇵",
    "汉字与假名かな、カタカナー한국어",
    "e\u0301 combines, a\u0308\u0323 twice, नमस्ते and กำ",
    "naïve ßœ Ω ∑ \u00a0 \u200b \U00010348 𝔘",
    " leading space",
    "",
]
SPECIAL = ("<s>", "</s>")


class Fast:
    """A tokenizer of the `tokenizers` package, as engines see one; counts what it decodes."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        self.num_calls = self.num_decoded = 0

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def ids(self, *pieces: str) -> list[int]:
        return [self.tokenizer.token_to_id(piece) for piece in pieces]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        self.num_calls += 1
        self.num_decoded += len(token_ids)
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


@cache
def byte_level() -> Fast:
    """A token a byte, and some that end one character and begin another."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "H"), ("ã", "ĥ"), ("ãĥ", "¼"), ("ãĥ¼", "ãĥ"), ("¼", "ã"), ("¼ã", "ĥ"), ("ð", "Ł")]
    vocab = {piece: i for i, piece in enumerate([*letters, *("".join(pair) for pair in merges)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return Fast(tokenizer)


def sentencepiece_like(decoder) -> Fast:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", *bytes_, "▁", *"Helowrd", "▁H", "He", "▁He", "▁w", "or"]
    merges = [("▁", "H"), ("H", "e"), ("▁", "He"), ("▁", "w"), ("o", "r")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    model = tokenizers.models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=False)
    tokenizer = tokenizers.Tokenizer(model)
    normalizers = tokenizers.normalizers
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(list(SPECIAL))
    return Fast(tokenizer)


@cache
def byte_fallback() -> Fast:
    """As LLaMA 2's: bytes for what is not in the vocabulary, and the first space of a text is dropped."""
    d = tokenizers.decoders
    return sentencepiece_like(d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]))


@cache
def metaspace() -> Fast:
    """As T5's: the first token loses its space marks."""
    d = tokenizers.decoders
    return sentencepiece_like(d.Sequence([d.ByteFallback(), d.Metaspace()]))


@cache
def smollm2():
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    from sarathi.model.tokenizer import load_tokenizer

    return load_tokenizer("smollm2")


@cache
def tokens_of(make: Callable[[], Any]) -> tuple[int, list[int]]:
    """How many there are, and those that end within a character."""
    decoder = make()
    vocab_size = decoder.vocab_size if make is smollm2 else decoder.tokenizer.get_vocab_size()
    return vocab_size, [i for i in range(vocab_size) if decoder.decode([i], False).endswith(REPLACEMENT)]


ALL = pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace, smollm2])


def stages(decoder: Decoder, ids: list[int], sizes: Sequence[int] = (1,), skip: bool = True) -> list[str]:
    """The text after each of several feeds, then at the end; asserts that no text takes back another."""
    detokenizer = Detokenizer(decoder, skip)
    shown, end, turn = [], 0, 0
    while end < len(ids):
        end += sizes[turn % len(sizes)]
        turn += 1
        detokenizer.feed(ids[:end])
        shown.append(detokenizer.text)
    detokenizer.feed(ids, flush=True)
    shown.append(detokenizer.text)
    for before, after in pairwise(shown):
        assert after.startswith(before)
    return shown


# Texts -----------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("text", TEXTS)
def test_each_whole_character_is_shown_with_its_last_token_and_nothing_broken(make, text):
    decoder = make()
    ids = decoder.encode(text)
    shown = stages(decoder, ids)
    assert shown[-1] == decoder.decode(ids, True)
    for end in range(1, len(ids) + 1):
        whole = decoder.decode(ids[:end], True)
        if make in (byte_fallback, metaspace) and REPLACEMENT in whole:
            continue  # of a run of bytes that is not whole at the end such a decoder shows nothing
        assert shown[end - 1] == whole.rstrip(REPLACEMENT)


@ALL
@given(text=st.text(), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_deltas_of_any_text_add_up(make, text, sizes):
    decoder = make()
    ids = decoder.encode(text)
    assert stages(decoder, ids, sizes)[-1] == decoder.decode(ids, True)


# Tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level, smollm2])
@given(data=st.data(), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), skip=st.booleans())
def test_random_tokens_add_up_and_nothing_is_held_but_bytes_at_the_end(make, data, sizes, skip):
    decoder = make()
    vocab_size, partial = tokens_of(make)
    ids = data.draw(st.lists(st.one_of(st.integers(0, vocab_size - 1), st.sampled_from(partial)), max_size=40))
    shown = stages(decoder, ids, sizes, skip)
    assert shown[-1] == decoder.decode(ids, skip)
    for end, text in enumerate(stages(decoder, ids, skip=skip)[:-1], start=1):
        whole = decoder.decode(ids[:end], skip)
        assert whole.startswith(text)
        assert whole[len(text) :] in ("", *(REPLACEMENT * n for n in range(1, MAX_HELD + 1)))


@pytest.mark.parametrize("make", [byte_fallback, metaspace])
@given(data=st.data(), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), skip=st.booleans())
def test_random_tokens_of_a_byte_fallback_tokenizer_add_up_unless_broken(make, data, sizes, skip):
    decoder = make()
    pieces = [decoder.ids("▁")[0], *decoder.ids(*SPECIAL, "▁He", "or", "H")]
    characters = st.sampled_from("é中😀").map(lambda c: decoder.ids(*(f"<0x{b:02X}>" for b in c.encode())))
    ids = list(chain(*data.draw(st.lists(st.one_of(characters, st.sampled_from(pieces).map(lambda i: [i]))))))
    whole = decoder.decode(ids, skip)
    assert REPLACEMENT not in whole
    shown = stages(decoder, ids, sizes, skip)
    assert shown[-1] == whole


def test_a_character_is_held_until_its_last_byte_and_flushed_if_that_never_comes():
    decoder = byte_level()
    ids = decoder.encode("a😀")
    assert len(ids) == 4  # the emoji's first two bytes are one token
    assert stages(decoder, ids) == ["a", "a", "a", "a😀", "a😀"]
    assert stages(decoder, ids[:3]) == ["a", "a", "a", "a" + REPLACEMENT]


def test_a_byte_fallback_decoder_shows_no_part_of_a_character_however_many_signs_it_makes():
    decoder = byte_fallback()
    ids = decoder.ids("He", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>")
    assert decoder.decode(ids[:4], True) == "He" + 3 * REPLACEMENT
    assert stages(decoder, ids) == ["He", "He", "He", "He", "He😀", "He😀"]
    assert stages(decoder, ids[:4])[-2:] == ["He", "He" + 3 * REPLACEMENT]


def test_a_byte_fallback_decoder_keeps_characters_before_broken_bytes():
    decoder = byte_fallback()
    ids = decoder.ids("<0xE4>", "<0xB8>", "<0xAD>", "<0xE4>", "H")
    assert decoder.decode(ids, True) == 4 * REPLACEMENT + "H"  # the run of bytes as a whole is no UTF-8
    assert stages(decoder, ids) == ["", "", "中", "中", *["中" + REPLACEMENT + "H"] * 2]


def test_tokens_fed_together_show_the_characters_that_are_whole():
    decoder = byte_fallback()
    ids = decoder.ids("<0xE4>", "<0xB8>", "<0xAD>", "<0xE4>")
    assert stages(decoder, ids, [4])[0] == "中"


def test_tokens_that_end_one_character_and_begin_another_do_not_wait_for_ever():
    decoder = byte_level()
    ids = [*decoder.ids("ãĥ"), *decoder.ids("¼ãĥ") * 8, *decoder.ids("¼")]
    shown = stages(decoder, ids)
    assert shown[-1] == "ー" * 9
    assert len(shown[5]) >= 2 and REPLACEMENT not in "".join(shown)


def test_broken_bytes_of_the_model_are_shown():
    decoder = byte_level()
    ids = [*decoder.ids("Ģ") * 10, *decoder.encode("x")]
    shown = stages(decoder, ids)
    assert shown[9] == REPLACEMENT * 7
    assert shown[-1] == REPLACEMENT * 10 + "x"


@pytest.mark.parametrize("make", [byte_fallback, metaspace])
def test_only_the_first_space_of_a_text_is_dropped(make):
    decoder = make()
    assert stages(decoder, decoder.ids("▁He", "▁w", "or"))[-1] == "He wor"
    assert stages(decoder, decoder.ids("▁", "▁", "▁He"))[-1] == "  He"
    assert stages(decoder, decoder.ids("<s>", "▁He", "</s>", "▁w"))[-1] == "He w"
    assert stages(decoder, decoder.ids("▁He", "<s>", "<s>", "▁w"), skip=False)[-1] == "He<s><s> w"


def test_special_tokens_show_when_asked_for():
    decoder = byte_level()
    ids = [*decoder.encode("a"), *decoder.ids("</s>"), *decoder.encode("b")]
    assert stages(decoder, ids)[-1] == "ab"
    assert stages(decoder, ids, skip=False) == ["a", "a</s>", "a</s>b", "a</s>b"]


# Cost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", ["H", "</s>", "ð"])
def test_a_few_tokens_are_decoded_for_each_that_comes(piece):
    """Plain ones, those that show nothing, and characters over several tokens."""
    decoder = byte_level()
    ids = decoder.encode("H") + (decoder.encode("😀") * 500 if piece == "ð" else decoder.ids(piece) * 1500)
    before = decoder.num_decoded
    stages(decoder, ids)
    assert decoder.num_decoded - before <= 12 * len(ids)


def test_asked_once_at_the_end_is_one_pass():
    decoder = byte_level()
    ids = decoder.encode("Hello " * 100)
    calls, decoded = decoder.num_calls, decoder.num_decoded
    detokenizer = Detokenizer(decoder, True)
    detokenizer.feed(ids, flush=True)
    assert detokenizer.text == "Hello " * 100
    assert (decoder.num_calls - calls, decoder.num_decoded - decoded) == (1, len(ids))


# Stop strings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stops", "start", "found"),
    [
        ("abcdef", ["de"], 0, (3, "de")),
        ("abcdef", ["x"], 0, None),
        ("abcdef", ["ef", "bc"], 0, (1, "bc")),
        ("abcdef", ["cde", "cd"], 0, (2, "cd")),
        ("abab", ["ab"], 2, (2, "ab")),  # the first ended before
        ("abcd", ["abc"], 2, (0, "abc")),  # began before, ends after
        ("abc", ["abc"], 3, None),
    ],
)
def test_find_stop(text, stops, start, found):
    assert find_stop(text, stops, start) == found


@pytest.mark.parametrize(
    ("text", "stops", "held"),
    [
        ("ABCDEF", ["DEFGHIJ"], 3),
        ("ABCDE", ["DEFGHIJ", "E"], 2),
        ("aab", ["aabaab"], 3),
        ("aabaaba", ["aabaab"], 4),
        ("abc", ["x"], 0),
        ("abc", [], 0),
        ("", ["x"], 0),
    ],
)
def test_num_held_back(text, stops, held):
    assert num_held_back(text, stops) == held
