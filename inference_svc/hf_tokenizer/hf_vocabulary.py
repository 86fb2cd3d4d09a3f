"""The vocabulary of a folder in Hugging Face's format, through the `tokenizers` library.

It is the other side of `inference_svc.llama.vocabulary`: tokens are those of transformers and vLLM,
and the same for a model that is also there as a GGUF file.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, Tokenizer

from inference_svc.hf_tokenizer.piece_decoder import (
    BYTE_ALPHABET,
    BYTE_TOKENS,
    Component,
    PieceDecoder,
    shrinkage,
)
from inference_svc.llama.vocabulary import InfillTokens, Vocabulary, encode_strictly
from inference_svc.models import hf_folder
from inference_svc.models.hf_folder import MAX_TOKENS, TOKENIZER, TOKENIZER_CONFIG, HfFolder
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import InvalidField, TokenOutOfVocabulary

_MAX_PROBLEM_CHARACTERS = 300
# The names that llama.cpp knows, in the order of the fields of `InfillTokens`.
_INFILL = (
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|>",
    "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|>",
    "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|>",
    "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "<|file_sep|>",
)


class HfVocabulary:
    """A vocabulary in Python's memory; several threads may use it."""

    render_chat = staticmethod(Vocabulary.render_chat)

    def __init__(self, folder: HfFolder, tokenizer: Tokenizer, decoder: PieceDecoder) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._lock = threading.Lock()  # of the library's setting that `tokenize` changes
        self._added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.size = max(highest + 1, folder.config.text.vocab_size)
        around_text = tokenizer.encode("", add_special_tokens=True).ids
        around_pair = tokenizer.encode("", "", add_special_tokens=True).ids
        self._first = around_text[:1]
        num_between = len(around_pair) - len(around_text)
        self.pair_separator = around_pair[len(around_text)] if num_between > 1 else None
        """The token between the two texts of a pair, after the end token of the first, if any."""
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the vocabulary of a folder.

        Raises:
            ModelFileInvalid: a file is missing or invalid, or the tokenizer is of a kind whose
                tokens have no bytes.
        """
        folder = HfFolder.read(path)
        content = hf_folder.read_tokenizer(path)
        try:
            with _library_failures():
                tokenizer = Tokenizer.from_buffer(content)
                tokenizer.no_truncation()
                tokenizer.no_padding()
                _add_tokens(tokenizer, folder)
                vocabulary = cls(folder, tokenizer, PieceDecoder(_state(tokenizer.decoder)))
        except ValueError as error:
            raise ModelFileInvalid(path / TOKENIZER, str(error)) from None
        vocabulary._check()
        return vocabulary

    def close(self) -> None:
        """Do nothing: no native memory is held."""

    @cached_property
    def bos(self) -> int | None:
        """The beginning-of-sequence token, if any."""
        return self._special_token("bos", "cls")

    @cached_property
    def eos(self) -> int | None:
        """The end-of-sequence token, if any."""
        return self._special_token("eos", "sep")

    @cached_property
    def adds_bos(self) -> bool:
        """Whether the model expects `bos` before every prompt."""
        return self.bos is not None and self._first == [self.bos]

    @cached_property
    def longest_piece_bytes(self) -> int | None:
        """The most bytes of a text for each of its tokens. None if a text may have any number of
        them: many tokenizers change a text before they divide it."""
        factor = shrinkage(
            _state(self._tokenizer.normalizer), _state(self._tokenizer.pre_tokenizer)
        )
        swallows_spaces = any(token.lstrip or token.rstrip for token in self._added.values())
        if factor is None or swallows_spaces or not self._has_all_bytes():
            return None
        if self._decoder.is_byte_level:
            return factor * max(map(len, self.iter_pieces()))
        # The character for spaces has more bytes than these, and a text may have it, too.
        texts = self._tokenizer.get_vocab(with_added_tokens=True)
        return factor * max(len(text.encode()) for text in texts)

    @cached_property
    def infill_tokens(self) -> InfillTokens | None:
        """The tokens around a prefix and a suffix, None if the model has not been trained on
        them."""
        prefix, suffix, middle, repository, separator = (
            next((t for name in names.split() if (t := self._find(name)) is not None), None)
            for names in _INFILL
        )
        if prefix is None or suffix is None or middle is None:
            return None
        return InfillTokens(prefix, suffix, middle, repository, separator)

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """All tokens that end a generation."""
        config, generation = self._folder.config, self._folder.generation_config
        ends = _ids(generation.eos_token_id) or _ids(
            config.eos_token_id or config.text.eos_token_id
        )
        return frozenset(ends if self.eos is None else (self.eos, *ends))

    @cached_property
    def control_tokens(self) -> Mapping[str, int]:
        """Control and unknown tokens by their texts, e.g. "<|im_end|>"."""
        return {added.content: token for token, added in self._added.items() if added.special}

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens by their texts that are found in a text before it is divided, but are no control
        tokens, e.g. "<tool_call>"."""
        return {each.content: token for token, each in self._added.items() if not each.special}

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """The texts that `parse_special` turns into control tokens."""
        return tuple(sorted(self.control_tokens))

    def control_tokens_in(self, texts: Sequence[str]) -> frozenset[int]:
        """Return the control tokens that `parse_special` finds in texts."""
        return frozenset(
            token
            for text in texts
            for token in self.tokenize(text, add_special=False, parse_special=True)
            if not self.piece(token) and self.token_text(token) in text
        )

    def token_text(self, token: int | None) -> str:
        """Return the raw text of a token for a chat template; empty for None."""
        if token is None:
            return ""
        self._check_token(token, "token")
        return self._tokenizer.id_to_token(token) or ""

    def parts_of(self, text: str, size: int, *, add_special: bool = False) -> tuple[str]:
        """As `Vocabulary.parts_of`: the text itself."""
        return (text,)

    def tokenize(
        self,
        text: str,
        *,
        add_special: bool,
        parse_special: bool,
        field: str = "prompt",
    ) -> list[int]:
        """Turn a text into token ids.

        Args:
            add_special: Add the tokens that the model expects around a text.
            parse_special: Parse control tokens written in the text.
            field: Name of the text in errors.

        Raises:
            InvalidField: The text is not valid Unicode (it has a lone surrogate), or the tokenizer
                has no tokens for it.
        """
        encode_strictly(text, field)
        try:
            with self._lock, _library_failures():
                self._tokenizer.encode_special_tokens = not parse_special
                # Unlike `encode` this releases the GIL, and computes no offsets.
                (encoding,) = self._tokenizer.encode_batch_fast(
                    [text], add_special_tokens=add_special
                )
        except ValueError as error:
            problem = f"the tokenizer of the model fails: {error}"
            raise InvalidField(field=field, problem=problem) from None
        tokens: list[int] = encoding.ids
        return tokens

    def detokenize(
        self, tokens: Sequence[int], *, special: bool = False, field: str = "token_ids"
    ) -> str:
        """Turn token ids into text. Invalid UTF-8 becomes U+FFFD; control tokens are omitted unless
        `special`. Raises `TokenOutOfVocabulary`."""
        different = dict.fromkeys(tokens)
        for token in different:
            self._check_token(token, field)
        pieces = {token: self.piece(token, special) for token in different}
        data = bytearray()
        for token in tokens:
            data += pieces[token]
        if self._decoder.drops_first_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def piece(self, token: int, special: bool = False) -> bytes:
        """Return the bytes of a token, which may be part of a character. Control tokens are empty
        unless `special`. Raises `TokenOutOfVocabulary`."""
        self._check_token(token, "token")
        cache = self._special_pieces if special else self._pieces
        piece = cache.get(token)
        if piece is None:
            piece = cache[token] = self._read_piece(token, special)
        return piece

    def iter_pieces(self) -> Iterator[bytes]:
        """Yield the bytes of all tokens in order, including control tokens, without caching."""
        return (self._read_piece(token, True) for token in range(self.size))

    def _read_piece(self, token: int, special: bool) -> bytes:
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""  # padding of the weights
        added = self._added.get(token)
        if added is not None and added.special:
            return text.encode() if special else b""
        if added is not None and self._decoder.is_byte_level:
            return text.encode()  # found in the text before bytes get their characters
        return self._decoder.decode(text)

    def _special_token(self, *names: str) -> int | None:
        """The first of these special tokens that is named, else the first of `config.json`."""
        if (text := self._folder.tokenizer_config.special_text(*names)) is not None:
            return self._find(text)
        field = f"{names[0]}_token_id"
        configs = self._folder.generation_config, self._folder.config, self._folder.config.text
        ids = (token for config in configs for token in _ids(getattr(config, field)))
        return next((token for token in ids if token < self.size), None)

    def _find(self, text: str) -> int | None:
        return self._tokenizer.token_to_id(text)

    def _has_all_bytes(self) -> bool:
        if self._decoder.is_byte_level:
            return all(self._find(text) is not None for text in BYTE_ALPHABET)
        if not self._decoder.has_byte_tokens or not getattr(
            self._tokenizer.model, "byte_fallback", True
        ):
            return False
        return all(self._find(text) is not None for text in BYTE_TOKENS)

    def _check(self) -> None:
        tokenizer = self._folder.path / TOKENIZER
        if not self._tokenizer.get_vocab_size():
            raise ModelFileInvalid(tokenizer, "it has no tokens")
        if self.size > MAX_TOKENS:
            problem = f"it has ids from 0 to {self.size - 1}; at most {MAX_TOKENS} are allowed"
            raise ModelFileInvalid(tokenizer, problem)
        for token in self.end_tokens:
            if token >= self.size:
                problem = f"the end token {token} is outside the vocabulary of {self.size} tokens"
                raise ModelFileInvalid(self._folder.path, problem)

    def _check_token(self, token: int, field: str) -> None:
        if not 0 <= token < self.size:
            raise TokenOutOfVocabulary(field=field, token=token, vocabulary_size=self.size)


@contextmanager
def _library_failures() -> Iterator[None]:
    """Turn what the library raises into `ValueError`."""
    try:
        yield
    except ModelFileInvalid:
        raise
    except BaseException as error:  # it raises nothing narrower, and panics are no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(str(error)[:_MAX_PROBLEM_CHARACTERS]) from None
        raise


def _state(component: Any) -> Component | None:
    """A part of a tokenizer as in `tokenizer.json`."""
    if component is None:
        return None
    state: Component = json.loads(component.__getstate__())
    return state


def _ids(tokens: int | list[int] | None) -> list[int]:
    if tokens is None:
        return []
    return tokens if isinstance(tokens, list) else [tokens]


def _add_tokens(tokenizer: Tokenizer, folder: HfFolder) -> None:
    """Add the tokens of `tokenizer_config.json` to those of `tokenizer.json`, as
    transformers does. Raises `ModelFileInvalid` if they contradict each other."""
    config, added = folder.tokenizer_config, tokenizer.get_added_tokens_decoder()
    for token, given in sorted(config.added_tokens_decoder.items()):
        new = AddedToken(**given.model_dump())
        if added.get(token) != new:
            tokenizer.add_tokens([new])
        if (found := tokenizer.token_to_id(given.content)) != token:
            problem = f"the token {given.content!r:.80} has the id {token}, in {TOKENIZER} {found}"
            raise ModelFileInvalid(folder.path / TOKENIZER_CONFIG, problem)
    added = tokenizer.get_added_tokens_decoder()
    for text in sorted(config.special_texts):
        token_id = tokenizer.token_to_id(text)
        if token_id is not None and not (token_id in added and added[token_id].special):
            tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
