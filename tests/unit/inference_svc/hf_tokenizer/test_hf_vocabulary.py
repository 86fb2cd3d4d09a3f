"""Vocabularies from folders of Hugging Face files: the demo model's as llama.cpp has it, and those
of other kinds."""

import json
import sys
from pathlib import Path
from unicodedata import normalize

import pytest
from tokenizers import Tokenizer, decoders, models

from inference_svc.hf_tokenizer.hf_vocabulary import HfVocabulary
from inference_svc.llama.vocabulary import InfillTokens, Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import InvalidField, TokenOutOfVocabulary
from tests.support.hf_folders import byte_level, metaspace, sentence_pieces, write_folder
from tools.demo_model.export_hf import export_tokenizer

PROPERTIES = [
    *("size", "bos", "eos", "adds_bos", "pair_separator", "longest_piece_bytes"),
    *("infill_tokens", "end_tokens", "control_tokens", "control_texts"),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> HfVocabulary:
    folder = tmp_path_factory.mktemp("demo")
    export_tokenizer(BUNDLED_PATH, folder)
    return HfVocabulary.load(folder)


def plain(vocabulary: HfVocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=False)


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_demo_model_has_the_properties_that_llama_cpp_says(
    demo: HfVocabulary, vocabulary: Vocabulary, name: str
) -> None:
    assert getattr(demo, name) == getattr(vocabulary, name)


def test_all_tokens_have_the_bytes_and_texts_that_llama_cpp_says(
    demo: HfVocabulary, vocabulary: Vocabulary
) -> None:
    assert list(demo.iter_pieces()) == list(vocabulary.iter_pieces())
    for token in range(vocabulary.size):
        assert demo.piece(token) == vocabulary.piece(token)
        assert demo.token_text(token) == vocabulary.token_text(token)


def test_control_tokens_are_found_as_by_llama_cpp(
    demo: HfVocabulary, vocabulary: Vocabulary
) -> None:
    texts = ["<|im_start|>thought", "</think>", "a <|im_end|>", "<|unknown|>", ""]

    assert demo.control_tokens_in(texts) == vocabulary.control_tokens_in(texts)


def test_control_tokens_are_omitted_from_text_unless_requested(demo: HfVocabulary) -> None:
    tokens = demo.tokenize("<|im_start|>Hi<think>", add_special=True, parse_special=True)

    assert demo.detokenize(tokens) == "Hi<think>"
    assert demo.detokenize(tokens, special=True) == "<|im_start|>Hi<think>"


def test_invalid_text_and_tokens_are_refused_by_name(demo: HfVocabulary) -> None:
    with pytest.raises(InvalidField, match="lone surrogate") as refused:
        demo.tokenize("\ud800", add_special=False, parse_special=False, field="messages")
    assert refused.value.field == "messages"
    for token in (-1, 2048):
        with pytest.raises(TokenOutOfVocabulary):
            demo.piece(token)
        with pytest.raises(TokenOutOfVocabulary):
            demo.detokenize([token])


def test_a_post_processor_that_adds_the_begin_token_is_noticed(tmp_path: Path) -> None:
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    vocabulary = HfVocabulary.load(
        write_folder(tmp_path, sentence_pieces(), tokenizer_config=names)
    )

    assert (vocabulary.bos, vocabulary.eos, vocabulary.adds_bos) == (1, 2, True)
    assert vocabulary.pair_separator == 2
    assert vocabulary.tokenize("the", add_special=True, parse_special=False)[0] == 1


def test_a_first_space_is_part_of_the_first_token_but_not_of_the_text(tmp_path: Path) -> None:
    """As with llama.cpp."""
    vocabulary = HfVocabulary.load(write_folder(tmp_path, sentence_pieces()))
    tokens = plain(vocabulary, "the 🦊")

    assert [vocabulary.piece(token) for token in tokens] == [
        *(b" the", b" "),
        *(bytes([byte]) for byte in "🦊".encode()),
    ]
    assert vocabulary.detokenize(tokens) == "the 🦊"
    assert vocabulary.token_text(tokens[0]) == "▁the"


def test_without_a_first_space_a_space_of_the_text_remains(tmp_path: Path) -> None:
    vocabulary = HfVocabulary.load(write_folder(tmp_path, metaspace()))

    assert vocabulary.detokenize(plain(vocabulary, "  the")) == "  the"


def test_added_tokens_have_the_bytes_of_their_own_text(tmp_path: Path) -> None:
    """Not those that byte-level BPE would read in their characters."""
    vocabulary = HfVocabulary.load(write_folder(tmp_path, byte_level()))
    tokens = plain(vocabulary, "néé")

    assert [vocabulary.piece(token) for token in tokens] == ["né".encode(), "é".encode()]


def test_normalization_makes_a_text_three_times_shorter_at_most(tmp_path: Path) -> None:
    """The longest token here has 9 bytes."""
    vocabulary = HfVocabulary.load(write_folder(tmp_path, byte_level()))
    characters = map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1)))
    shrinkage = max(
        max(len(each.encode()), len(normalize("NFD", each).encode()))
        / len(normalize("NFC", each).encode())
        for each in characters
    )

    assert shrinkage == 3
    assert vocabulary.longest_piece_bytes == 3 * len("<|start|>")


def test_end_tokens_are_those_of_the_generation_and_of_the_tokenizer(tmp_path: Path) -> None:
    """Those of `config.json` count where there are no others."""
    tokenizer, config = byte_level(), {"eos_token_id": 7}
    end = tokenizer.token_to_id("<|end|>")
    names = {"eos_token": "<|end|>"}
    alone = write_folder(tmp_path / "a", tokenizer, config=config)
    named = write_folder(tmp_path / "b", tokenizer, config=config, tokenizer_config=names)
    listed = write_folder(
        *(tmp_path / "c", tokenizer),
        config=config,
        tokenizer_config=names,
        generation_config={"eos_token_id": [3, 4]},
    )

    assert HfVocabulary.load(alone).end_tokens == {7}
    assert HfVocabulary.load(named).end_tokens == {end, 7}
    assert HfVocabulary.load(listed).end_tokens == {end, 3, 4}


def test_tokens_of_the_tokenizer_config_are_added(tmp_path: Path) -> None:
    """With the flags that it gives them, as transformers does; named special tokens, too."""
    tokenizer = byte_level()
    think, new = tokenizer.token_to_id("<think>"), tokenizer.get_vocab_size()
    added = {
        str(think): {"content": "<think>", "normalized": False, "special": True},
        str(new): {"content": "<|fim_prefix|>", "normalized": False, "special": True},
        str(new + 1): {"content": "<|fim_suffix|>", "normalized": False, "special": False},
        str(new + 2): {"content": "<|fim_middle|>", "normalized": False, "special": False},
    }
    config = {"added_tokens_decoder": added, "additional_special_tokens": ["<|fim_middle|>"]}
    vocabulary = HfVocabulary.load(write_folder(tmp_path, tokenizer, tokenizer_config=config))

    assert vocabulary.infill_tokens == InfillTokens(new, new + 1, new + 2)
    assert plain(vocabulary, "<|fim_suffix|>") == [new + 1]
    assert set(vocabulary.control_texts) == {
        *("<|end|>", "<|start|>", "<think>", "<|fim_prefix|>", "<|fim_middle|>")
    }
    assert not {think, new, new + 2} & {*plain(vocabulary, "<think><|fim_prefix|><|fim_middle|>")}


def test_ids_up_to_the_size_of_the_weights_have_no_bytes(tmp_path: Path) -> None:
    """Engines may sample the padding of the output matrix."""
    vocabulary = HfVocabulary.load(write_folder(tmp_path, byte_level(), config={"vocab_size": 512}))

    assert vocabulary.size == 512
    assert vocabulary.piece(511) == b""
    assert vocabulary.token_text(511) == ""


def test_padding_and_truncation_are_switched_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    vocabulary = HfVocabulary.load(write_folder(tmp_path, tokenizer))

    assert len(plain(vocabulary, "1234567890")) == 10
    assert len(plain(vocabulary, "1")) == 1


def test_word_pieces_have_the_space_before_them(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "fox": 1, "##es": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece("##")
    vocabulary = HfVocabulary.load(write_folder(tmp_path, tokenizer))
    tokens = plain(vocabulary, "foxes")

    assert [vocabulary.piece(token) for token in tokens] == [b" fox", b"es"]
    assert vocabulary.detokenize(tokens) == "foxes"
    assert vocabulary.longest_piece_bytes is None


def undecodable() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.CTC()
    return tokenizer


def decoderless() -> Tokenizer:
    return Tokenizer(models.BPE({"a": 0}, []))


def of_tokens(vocabulary: str) -> bytes:
    tokenizer = Tokenizer(models.BPE({}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().replace('"vocab":{}', f'"vocab":{vocabulary}').encode()


def with_part(name: str, part: object) -> bytes:
    return json.dumps({**json.loads(byte_level().to_str()), name: part}).encode()


UNKNOWN_TOKEN = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    ("tokenizer", "files", "problem"),
    [
        (undecodable(), {}, "its decoder has the step CTC, which is not supported here"),
        (decoderless(), {}, "it has no decoder"),
        (b"{", {}, "EOF while parsing"),
        (b"[" * 10**6, {}, "expected struct Tokenizer"),
        (b'{"model":' * 10**5, {}, "recursion limit exceeded"),
        (of_tokens("{}"), {}, "it has no tokens"),
        (with_part("post_processor", UNKNOWN_TOKEN), {}, "no entry found for key"),
        (of_tokens('{"a": 4294967295}'), {}, "it has ids from 0 to 4294967295; at most 1048576"),
        (
            byte_level(),
            {"generation_config": {"eos_token_id": [3, 999]}},
            "the end token 999 is outside the vocabulary of 265 tokens",
        ),
        (
            byte_level(),
            {"tokenizer_config": {"added_tokens_decoder": {"3": {"content": "<|end|>"}}}},
            "the token '<|end|>' has the id 3, in tokenizer.json 263",
        ),
    ],
)
def test_unusable_tokenizers_are_refused_with_the_reason(
    tmp_path: Path, tokenizer: Tokenizer | bytes, files: dict[str, object], problem: str
) -> None:
    write_folder(tmp_path, tokenizer, **files)

    with pytest.raises(ModelFileInvalid) as refused:
        HfVocabulary.load(tmp_path)
    assert problem in refused.value.problem


CLEANED = ["fox", ".", "?", "!", ",", "'", "'s", "n't", "'m", "'ve", "'re", "do not", "##.", ";"]


@pytest.mark.parametrize("cleanup", [True, False])
def test_word_pieces_are_cleaned_up_as_the_library_does(tmp_path: Path, cleanup: bool) -> None:
    """The space before a mark is that of its token; the first token of a text has none."""
    words = {word: number for number, word in enumerate(["[UNK]", *CLEANED])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece("##", cleanup=cleanup)
    vocabulary = HfVocabulary.load(write_folder(tmp_path, tokenizer))

    for first in ("fox", ".", "'s", "n't", ";"):
        tokens = [words[first], *range(1, len(words))]
        assert vocabulary.detokenize(tokens) == tokenizer.decode(tokens)
    assert vocabulary.piece(words["."]) == (b"." if cleanup else b" .")


def test_a_text_for_which_a_tokenizer_has_no_tokens_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"fox": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece("##")
    vocabulary = HfVocabulary.load(write_folder(tmp_path, tokenizer))

    with pytest.raises(InvalidField, match="the tokenizer of the model fails"):
        plain(vocabulary, "dog")


def test_a_panic_of_the_library_is_the_fault_of_the_text(tmp_path: Path) -> None:
    """And not the end of the call without an answer."""
    tokenizer = with_part("pre_tokenizer", {"type": "FixedLength", "length": 0})
    vocabulary = HfVocabulary.load(write_folder(tmp_path, tokenizer))

    for _ in range(2):
        with pytest.raises(InvalidField, match="chunk size must be non-zero"):
            plain(vocabulary, "dog")
