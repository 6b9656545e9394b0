"""Tokenizers of GGUF files against transformers' conversion of them, of folders against transformers itself, chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from sarathi.errors import FieldError
from sarathi.model.tokenizer import Tokenizer, load_tokenizer
from tests.gguf_files import byte_level_vocabulary, write_gguf

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "It's they'll WE'RE I'd've",
    "  two spaces, then\ttabs\t\tand\n\nlines \n \r\n end  ",
    "def f(x):\n    return x**2  # comment\n",
    "12345 items at 3.14159, 0x1F, 2026-01-31",
    "Grüße, Ünïcödé, naïve café, Ａ",
    "日本語のテキスト 中文 한국어 العربية हिन्दी",
    "emoji 👩‍👩‍👧 🏳️‍🌈 \U0001f600 and \u200b zero width",
    "Ⅷ.½x²-٣ punctuation!?... --- «quotes» “x”",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "a<|im_end|> b <|im_end|>c<|not_special|>",
    "x" * 300,
]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "12 3", "123 4", "Ġ 1", "Ġ Ġ", "' l", "'l l"]
CONTROL, NORMAL, USER_DEFINED = 3, 1, 4
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'judge' %}{{ raise_exception('no judges') }}{% endif %}"
    "{{ bos_token }}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tiny_gguf(path: Path, pre: str = "gpt-2", **other: Any) -> Path:
    """Bytes, a few merges, <s> and </s>, and <think> as a token that users may write."""
    tokens = [*byte_level_vocabulary(MERGES), "<s>", "</s>", "<think>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 3) + [CONTROL, CONTROL, USER_DEFINED],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
        "tokenizer.chat_template": TEMPLATE,
    }
    named = {f"tokenizer.{key}": value for key, value in other.items()}
    return write_gguf(path, {key: value for key, value in (metadata | named).items() if value is not None})


def loaded(path: Path | str) -> Tokenizer:
    tokenizer = load_tokenizer(str(path))
    assert tokenizer is not None
    return tokenizer


def converted(path: Path) -> Any:
    """transformers' own reading of a GGUF file."""
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    try:
        return loaded("smollm2")
    except FieldError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_smollm2_as_transformers_converts_it(smollm2: Tokenizer) -> None:
    from sarathi.model.checkpoint import packaged_smollm2

    reference = converted(packaged_smollm2())
    for text in TEXTS:
        ids = smollm2.encode(text)
        assert ids == reference.encode(text), text
        for skip in (True, False):
            assert smollm2.decode(ids, skip) == reference.decode(ids, skip, clean_up_tokenization_spaces=False), text
    messages = [{"role": "user", "content": "What is 2+2?"}]
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert smollm2.apply_chat_template(messages) == expected
    # The one difference: its own tokenizer.json splits at each digit before words, the conversion does not.
    assert [reference.decode([i]) for i in reference.encode("at  7")] == ["at", " ", " ", "7"]


def test_smollm2_tokens(smollm2: Tokenizer) -> None:
    assert (smollm2.eos_token_ids, smollm2.vocab_size) == ((2,), 49152)
    assert smollm2.encode("Hello <|im_start|> 12345 world") == [19556, 216, 1, 216, 33, 34, 35, 36, 37, 905]
    assert [smollm2.decode([i]) for i in smollm2.encode("at  7 or  ½x")] == ["at", "  ", "7", " or", "  ", "½", "x"]
    for text in TEXTS:
        ids = smollm2.encode(text)
        assert smollm2.decode(ids, skip_special_tokens=False) == text
        assert smollm2.encode(text, add_special_tokens=False) == ids


def test_smollm2_chat(smollm2: Tokenizer) -> None:
    ids = smollm2.apply_chat_template([{"role": "user", "content": "What is 2+2?"}])
    text = smollm2.decode(ids, skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(1) == 3  # each one token


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_each_way_of_splitting_as_transformers_has_it(tmp_path: Path, pre: str) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", pre, **{"ggml.add_bos_token": False})
    tokenizer, theirs = loaded(path), converted(path)
    if pre == "llama-bpe":  # as in Llama 3's own tokenizer.json, left out of the conversion
        theirs.backend_tokenizer.model.ignore_merges = True
    for text in [*TEXTS, "hello hello", "<think>hello</s>", " hello  12341234"]:
        if "<|endoftext|>" in text or (pre == "smollm" and any(map(str.isnumeric, text))):
            continue  # the conversion adds the one, and does not cut out the other
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), (pre, text)
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i], skip_special_tokens=False) for i in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", [" ", "1234", "5"]),
        ("llama-bpe", [" ", "123", "4", "5"]),
        ("qwen2", [" ", "1", "2", "3", "4", "5"]),
        ("smollm", [" ", "1", "2", "3", "4", "5"]),
    ],
)
def test_digits_are_grouped_as_each_model_was_trained(tmp_path: Path, pre: str, expected: list[str]) -> None:
    tokenizer = loaded(tiny_gguf(tmp_path / "a.gguf", pre, **{"ggml.add_bos_token": False}))
    assert pieces(tokenizer, " 12345") == expected


def test_a_character_and_its_composition_are_one_to_qwen2(tmp_path: Path) -> None:
    tokenizer = loaded(tiny_gguf(tmp_path / "a.gguf", "qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_llama3_takes_a_word_that_is_a_token_whole(tmp_path: Path) -> None:
    """Without merges that lead there."""
    tokens = [*byte_level_vocabulary(MERGES), "xyz"]
    changes = {"ggml.tokens": tokens, "ggml.token_type": None, "ggml.bos_token_id": None, "ggml.eos_token_id": None}
    tokenizer = loaded(tiny_gguf(tmp_path / "a.gguf", "llama-bpe", **changes))
    assert tokenizer.encode("xyz") == [len(tokens) - 1]
    assert len(loaded(tiny_gguf(tmp_path / "b.gguf", "gpt-2", **changes)).encode("xyz")) == 3


@pytest.mark.parametrize(
    ("pre", "bos", "eos", "begins", "ends"),
    [
        ("gpt-2", None, None, False, False),
        ("gpt-2", True, None, True, False),
        ("gpt-2", True, True, True, True),
        ("llama-bpe", None, None, True, False),
        ("llama-bpe", False, None, False, False),
    ],
)
def test_special_tokens_around_a_text(
    tmp_path: Path, pre: str, bos: bool | None, eos: bool | None, begins: bool, ends: bool
) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", pre, **{"ggml.add_bos_token": bos, "ggml.add_eos_token": eos})
    tokenizer = loaded(path)
    assert pieces(tokenizer, "hello") == ["<s>"] * begins + ["hello"] + ["</s>"] * ends
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.decode(plain) == tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert len(plain) == 1


@pytest.mark.parametrize(("eot", "eom", "expected"), [(9, 11, (7, 9, 11)), (7, 11, (7, 11)), (None, None, (7,))])
def test_all_tokens_that_end_an_answer(tmp_path: Path, eot: Any, eom: Any, expected: tuple[int, ...]) -> None:
    keys = {"ggml.eos_token_id": 7, "ggml.eot_token_id": eot, "ggml.eom_token_id": eom}
    assert loaded(tiny_gguf(tmp_path / "a.gguf", **keys)).eos_token_ids == expected


def test_sentencepiece_through_transformers(tmp_path: Path) -> None:
    pieces_ = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁heloab", "he", "▁he", "ll"]
    kinds = [2, CONTROL, CONTROL] + [6] * 256 + [NORMAL] * 10
    path = tiny_gguf(
        tmp_path / "a.gguf",
        **{
            "ggml.model": "llama",
            "ggml.pre": None,
            "ggml.tokens": pieces_,
            "ggml.scores": [-float(i) for i in range(len(pieces_))],
            "ggml.token_type": kinds,
            "ggml.merges": None,
            "ggml.bos_token_id": 1,
            "ggml.eos_token_id": 2,
        },
    )
    tokenizer = loaded(path)
    ids = tokenizer.encode("hello é")
    assert ids[0] == 1
    assert [pieces_[i] for i in ids[1:4]] == ["▁he", "ll", "o"]
    assert tokenizer.decode(ids) == "hello é"
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.decode(tokenizer.apply_chat_template([{"role": "user", "content": "a"}])).endswith("assistant:")


MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "</s> hello"}]


def test_chat_template_of_a_gguf_file(tmp_path: Path) -> None:
    tokenizer = loaded(tiny_gguf(tmp_path / "a.gguf", **{"ggml.add_bos_token": True}))
    text = tokenizer.decode(tokenizer.apply_chat_template(MESSAGES), skip_special_tokens=False)
    assert text == "<s>user: hello</s><s>assistant: </s> hello</s>assistant:"  # one <s>: the template's


@pytest.mark.parametrize(
    ("messages", "template", "message"),
    [
        ([{"role": "judge", "content": "x"}], TEMPLATE, r"the model's template refuses the messages \(no judges\)"),
        (["hello"], TEMPLATE, "'hello' is not allowed; messages with role and content"),
        ([{"role": "user"}], TEMPLATE, "is not allowed; messages with role and content"),
        (MESSAGES, "{% if %}", "the model's template refuses"),
        (MESSAGES, "{{ messages.__class__.__mro__ }}", "the model's template refuses"),
        (MESSAGES, None, "the model has no chat template"),
    ],
)
def test_chats_that_are_refused(tmp_path: Path, messages: Any, template: str | None, message: str) -> None:
    tokenizer = loaded(tiny_gguf(tmp_path / "a.gguf", chat_template=template))
    with pytest.raises(ValueError, match=message) as caught:
        tokenizer.apply_chat_template(messages)
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder with a tokenizer alone: words, <s> put before, cutting at 4 tokens as some files ask."""
    words = {"<s>": 0, "</s>": 1, "<unk>": 2, "one": 3, "two": 4, "three": 5}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast.add_special_tokens(["<s>", "</s>", "<unk>"])
    fast.enable_truncation(4)
    fast.enable_padding(length=4)
    fast.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def test_folder_as_transformers_reads_it(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = loaded(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("one", "one two three one two three", "one </s> four"):
        assert tokenizer.encode(text) == theirs.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert tokenizer.encode("one two three one two three") == [0, 3, 4, 5, 3, 4, 5]
    assert (tokenizer.eos_token_ids, tokenizer.vocab_size) == ((1,), len(theirs))
    messages = [{"role": "one", "content": "two"}]
    assert tokenizer.apply_chat_template(messages) == theirs.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, None, (1,)),
        ({"eos_token_id": 5}, None, (5, 1)),  # the tokenizer's own counts too
        ({"eos_token_id": 5}, {"eos_token_id": [4, 3]}, (4, 3, 1)),
        ({"eos_token_id": [1, 0]}, {"temperature": 0.6}, (1, 0)),
    ],
)
def test_end_of_text_of_a_folder(folder: Path, config: Any, generation: Any, expected: tuple[int, ...]) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert loaded(folder).eos_token_ids == expected


def test_models_without_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert load_tokenizer(str(folder)) is None
    assert load_tokenizer(str(write_gguf(tmp_path / "a.gguf", {}))) is None


def test_tokenizers_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    broken = tiny_gguf(tmp_path / "a.gguf", **{"ggml.merges": ["h zz"]})
    unknown = tiny_gguf(tmp_path / "b.gguf", **{"ggml.model": "wordpiece"})
    for path in (folder, broken, unknown):
        with pytest.raises(FieldError, match=r"model: the tokenizer of .* cannot be read") as caught:
            load_tokenizer(str(path))
        assert "\n" not in str(caught.value)
    with pytest.raises(FieldError, match=r"lacks the metadata tokenizer\.ggml\.merges"):
        load_tokenizer(str(tiny_gguf(tmp_path / "c.gguf", **{"ggml.merges": None})))


def test_text_that_is_none() -> None:
    tokenizer = load_tokenizer("smollm2")
    assert tokenizer is not None
    with pytest.raises(ValueError, match="prompt: not allowed; a surrogate without its half at character 1"):
        tokenizer.encode("a\ud800")
