"""Vocabulary, tokenizer and grammar tokenizer of a model, through llama.cpp.

Arguments are validated here because llama.cpp terminates the process on invalid ones: invalid UTF-8
makes `llama_tokenize` throw through its C interface.
"""

import ctypes
import re
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from llama_cpp import llama_cpp as native
from llguidance import LLTokenizer

from inference_svc.llama import devices, library
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import InvalidField, TokenOutOfVocabulary, TooLong

_MAX_TEXT_BYTES = 2**31 - 1  # llama.cpp's text length is a 32-bit integer
_CUT = re.compile("[A-Za-z](?= [A-Za-z])")
"""Where a text may be cut: before a space between two words."""
_JOINING = re.compile("[A-Za-z](Ġ|▁| )".encode())
"""In the text of a token, whose spaces may be written as those."""
_WORD_EDGE = re.compile(r"\A[A-Za-z]|[A-Za-z]( |\Z)")
_SPACE_MARK = "▁"  # SentencePiece writes spaces so, as texts may
_PIECE_BYTES = 8  # enough for most tokens; longer ones need a second call


class InfillTokens(NamedTuple):
    """The tokens before a prefix, a suffix, and the text between them; before the name of a
    repository, and the name of a file, if the model has them."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    separator: int | None = None


class Vocabulary:
    """The vocabulary of one model; several threads may use it.

    The native model stays loaded until `close`; a borrowed model (`from_model`) must outlive this
    object.
    """

    def __init__(self, model: native.llama_model_p, *, owns_model: bool) -> None:
        self._model = model
        self._owns_model = owns_model
        self._vocab = native.llama_model_get_vocab(model)
        self._type: int = native.llama_vocab_type(self._vocab)
        self._idle = threading.Condition()
        self._calls = 0
        self._closed = False
        self.size: int = native.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the vocabulary of a model file, without its weights.

        Raises:
            ModelFileInvalid: llama.cpp cannot read the file.
        """
        library.start()
        params = native.llama_model_default_params()
        params.vocab_only = True
        no_devices = devices.device_array(())
        params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
        model = native.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            reason = library.pop_load_error()
            raise ModelFileInvalid(path, f"llama.cpp cannot load its vocabulary: {reason}")
        return cls(model, owns_model=True)

    @classmethod
    def from_model(cls, model: native.llama_model_p) -> Self:
        """Use the vocabulary of a loaded model, which the caller owns."""
        return cls(model, owns_model=False)

    def close(self) -> None:
        """Wait for running calls, then free the model unless it is borrowed. Idempotent."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: self._calls == 0)
        if self._owns_model:
            native.llama_model_free(self._model)

    @cached_property
    def bos(self) -> int | None:
        """The beginning-of-sequence token, if any."""
        with self._in_use():
            return self._token_or_none(int(native.llama_vocab_bos(self._vocab)))

    @cached_property
    def eos(self) -> int | None:
        """The end-of-sequence token, if any."""
        with self._in_use():
            return self._token_or_none(int(native.llama_vocab_eos(self._vocab)))

    @cached_property
    def adds_bos(self) -> bool:
        """Whether the model expects `bos` before every prompt."""
        with self._in_use():
            return bool(native.llama_vocab_get_add_bos(self._vocab))

    @cached_property
    def _adds_eos(self) -> bool:
        with self._in_use():
            return bool(native.llama_vocab_get_add_eos(self._vocab))

    @cached_property
    def pair_separator(self) -> int | None:
        """The token between the two texts of a pair, after the end token of the first, if any."""
        with self._in_use():
            if self._type == native.LLAMA_VOCAB_TYPE_WPM:
                return None  # WPM separates by the end token; llama.cpp's default reports another
            if not native.llama_vocab_get_add_sep(self._vocab):
                return None
            return self._token_or_none(int(native.llama_vocab_sep(self._vocab)))

    @cached_property
    def longest_piece_bytes(self) -> int | None:
        """The most bytes of a text for each of its tokens. None if a text may have any number of
        them: WordPiece, Unigram and others change a text before they divide it."""
        if self._type not in (native.LLAMA_VOCAB_TYPE_SPM, native.LLAMA_VOCAB_TYPE_BPE):
            return None
        if _SPACE_MARK in self.detokenize(
            self.tokenize(_SPACE_MARK, add_special=False, parse_special=False)
        ):
            return max(map(len, self.iter_pieces()), default=None)
        # The mark has three bytes in a text, and one in a piece, where it is a space.
        get_text = native.llama_vocab_get_text
        with self._in_use():
            texts = (get_text(self._vocab, token) for token in range(self.size))
            return max(map(len, texts), default=None)

    @cached_property
    def infill_tokens(self) -> InfillTokens | None:
        """The tokens around a prefix and a suffix, None if the model has not been trained on
        them."""
        with self._in_use():
            tokens = [
                self._token_or_none(int(function(self._vocab)))
                for function in (
                    native.llama_vocab_fim_pre,
                    native.llama_vocab_fim_suf,
                    native.llama_vocab_fim_mid,
                    native.llama_vocab_fim_rep,
                    native.llama_vocab_fim_sep,
                )
            ]
        prefix, suffix, middle, repository, separator = tokens
        if prefix is None or suffix is None or middle is None:
            return None
        return InfillTokens(prefix, suffix, middle, repository, separator)

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """All tokens that end a generation."""
        with self._in_use():
            is_end = native.llama_vocab_is_eog
            return frozenset(t for t in range(self.size) if is_end(self._vocab, t))

    @cached_property
    def control_tokens(self) -> Mapping[str, int]:
        """Control and unknown tokens by their texts, e.g. "<|im_end|>"."""
        return self._tokens_with(native.LLAMA_TOKEN_ATTR_CONTROL | native.LLAMA_TOKEN_ATTR_UNKNOWN)

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens by their texts that are found in a text before it is divided, but are no control
        tokens, e.g. "<tool_call>"."""
        return self._tokens_with(native.LLAMA_TOKEN_ATTR_USER_DEFINED)

    def _tokens_with(self, attributes: int) -> dict[str, int]:
        with self._in_use():
            texts = {
                token: native.llama_vocab_get_text(self._vocab, token)
                for token in range(self.size)
                if native.llama_vocab_get_attr(self._vocab, token) & attributes
            }
        return {text.decode("utf-8", "replace"): token for token, text in texts.items() if text}

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """The texts that `parse_special` turns into control tokens."""
        return tuple(sorted(self.control_tokens))

    @property
    def pointer(self) -> Any:
        """The native `llama_vocab` pointer, valid until `close`."""
        return self._vocab

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
        with self._in_use():
            text: bytes = native.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def find_difference(self, other: "Vocabulary") -> str | None:
        """How another vocabulary differs, at its first token that does; None if both are equal, but
        for unused tokens at the end of one, as models of one family have."""
        mine, theirs = list(self._entries()), list(other._entries())
        for token, (entry, another) in enumerate(zip(mine, theirs, strict=False)):
            if entry != another:
                (text, kind), (other_text, other_kind) = entry, another
                return (
                    f"its token {token} is {other_text!r} of the attributes {other_kind} instead "
                    f"of {text!r} of {kind}"
                )
        for _, kind in (*mine[other.size :], *theirs[self.size :]):
            if not kind & native.LLAMA_TOKEN_ATTR_UNUSED:
                return f"it has {other.size} tokens instead of {self.size}"
        for name in ("bos", "eos", "end_tokens"):
            if (role := getattr(self, name)) != (other_role := getattr(other, name)):
                return f"its {name} is {other_role} instead of {role}"
        return None

    def _entries(self) -> Iterator[tuple[bytes, int]]:
        """The text and the attributes of each token."""
        with self._in_use():
            for token in range(self.size):
                text = native.llama_vocab_get_text(self._vocab, token)
                yield text, int(native.llama_vocab_get_attr(self._vocab, token))

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
            add_special: Add the BOS and EOS tokens that the model expects.
            parse_special: Parse control tokens written in the text.
            field: Name of the text in errors.

        Raises:
            InvalidField: The text is not valid Unicode (it has a lone surrogate).
            TooLong: The text has more bytes than llama.cpp can count.
        """
        data = encode_strictly(text, field)
        if len(data) > _MAX_TEXT_BYTES:
            raise TooLong(field=field, length=len(data), limit=_MAX_TEXT_BYTES, unit="bytes")
        capacity = len(data) + 8
        with self._in_use():
            while True:
                tokens = (native.llama_token * capacity)()
                count: int = native.llama_tokenize(
                    self._vocab, data, len(data), tokens, capacity, add_special, parse_special
                )
                if count >= 0:
                    return tokens[:count]
                capacity = -count

    def parts_of(self, text: str, size: int, *, add_special: bool = False) -> Iterator[str]:
        """Cut a text into parts of at least `size` characters, whose tokens together are those of
        the text; with `add_special` those of the first part have it, too. llama.cpp takes forty
        bytes of memory for each of a text. It is one part where that is not sure."""
        begin = 0
        can_cut = self._can_cut and not (add_special and self._adds_eos)
        while can_cut and (place := _CUT.search(text, begin + size)):
            yield text[begin : place.start() + 1]
            begin = place.start() + 1
        yield text[begin:]

    @cached_property
    def _can_cut(self) -> bool:
        """Whether no token reaches from a letter to a space behind it, and no control or added
        token, which may take the space beside it, begins or ends with a letter."""
        if self._type != native.LLAMA_VOCAB_TYPE_BPE:
            return False
        special = {*self.control_tokens.values(), *self.added_tokens.values()}
        if any(map(_WORD_EDGE.search, (*self.control_tokens, *self.added_tokens))):
            return False
        get_text = native.llama_vocab_get_text
        with self._in_use():
            others = (get_text(self._vocab, token) for token in {*range(self.size)} - special)
            return not any(map(_JOINING.search, others))

    def detokenize(
        self, tokens: Sequence[int], *, special: bool = False, field: str = "token_ids"
    ) -> str:
        """Turn token ids into text. Invalid UTF-8 becomes U+FFFD; control tokens are omitted unless
        `special`. Raises `TokenOutOfVocabulary`."""
        different = dict.fromkeys(tokens)
        for token in different:
            self._check_token(token, field)
        if self._type == native.LLAMA_VOCAB_TYPE_BPE:
            # llama_detokenize would omit spaces of the text, e.g. before full stops.
            pieces = {token: self.piece(token, special) for token in different}
            data = bytearray()
            for token in tokens:
                data += pieces[token]
            return data.decode("utf-8", "replace")
        ids = (native.llama_token * len(tokens)).from_buffer(array("i", tokens))
        capacity = 8 * len(tokens) + 16
        with self._in_use():
            while True:
                buffer = ctypes.create_string_buffer(capacity)
                written: int = native.llama_detokenize(
                    self._vocab, ids, len(tokens), buffer, capacity, False, special
                )
                if written >= 0:
                    return buffer.raw[:written].decode("utf-8", "replace")
                capacity = -written

    @staticmethod
    def render_chat(template: str, messages: Sequence[tuple[str, str]]) -> str | None:
        """Render messages (roles and texts) and the beginning of an answer as llama.cpp does
        without Jinja; None if the template is not in its list."""
        chat = (native.llama_chat_message * len(messages))(
            *(native.llama_chat_message(role.encode(), text.encode()) for role, text in messages)
        )

        def apply(buffer: Any, size: int) -> int:
            source, count = template.encode(), len(messages)
            written: int = native.llama_chat_apply_template(source, chat, count, True, buffer, size)
            return written

        size = apply(None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        apply(buffer, size + 1)
        return buffer.raw[:size].decode("utf-8", "replace")

    def piece(self, token: int, special: bool = False) -> bytes:
        """Return the bytes of a token, which may be part of a character. Control tokens are empty
        unless `special`. Raises `TokenOutOfVocabulary`."""
        cache = self._special_pieces if special else self._pieces
        piece = cache.get(token)
        if piece is None:
            self._check_token(token, "token")
            piece = cache[token] = self._read_piece(token, special)
        return piece

    def iter_pieces(self) -> Iterator[bytes]:
        """Yield the bytes of all tokens in order, including control tokens, without caching."""
        return (self._read_piece(token, True) for token in range(self.size))

    def _read_piece(self, token: int, special: bool) -> bytes:
        with self._in_use():
            if native.llama_vocab_get_attr(self._vocab, token) & native.LLAMA_TOKEN_ATTR_UNUSED:
                return b""  # padding, whose text looks like an ordinary word
            length = _PIECE_BYTES
            while True:
                buffer = ctypes.create_string_buffer(length)
                written: int = native.llama_token_to_piece(
                    self._vocab, token, buffer, length, 0, special
                )
                if written >= 0:
                    return buffer.raw[:written]
                length = -written

    def _check_token(self, token: int, field: str) -> None:
        if not 0 <= token < self.size:
            raise TokenOutOfVocabulary(field=field, token=token, vocabulary_size=self.size)

    def _token_or_none(self, token: int) -> int | None:
        return token if 0 <= token < self.size else None

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise ValueError("the vocabulary is closed")
            self._calls += 1
        try:
            yield
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()


def encode_strictly(text: str, field: str) -> bytes:
    """Encode as UTF-8. Raises `InvalidField` if the text has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise InvalidField(
            field=field,
            problem=f"not valid Unicode: a lone surrogate at character {problem.start}",
        ) from None


_CONTROL = b"\xff"  # llguidance's prefix of special tokens, which no text matches
# Most tokens are allowed inside JSON strings. llguidance precomputes a table for each of these
# slices, so that a mask takes microseconds instead of a millisecond. A table of a large vocabulary
# takes 13 MB; llguidance's two other default slices (any length, white space) save no measurable
# time.
_SLICES = [r'[^"\\\x00-\x1F\x7F]{1,10}', r'[^"\\\x00-\x1F\x7F]{1,30}']


def grammar_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Build llguidance's tokenizer. The vocabulary must stay open while it is used."""
    control = frozenset(vocabulary.control_tokens.values())
    tokens = [
        _CONTROL * (token in control) + piece
        for token, piece in enumerate(vocabulary.iter_pieces())
    ]
    tokenize = ctypes.cast(native._lib.llama_tokenize, ctypes.c_void_p).value
    tokenizer: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # not in its stubs
        tokens=tokens,
        vocab_ptr=vocabulary.pointer,
        tokenize_fptr=tokenize,
        eos_token=sorted(vocabulary.end_tokens) or None,
        slices=_SLICES,
    )
    del tokens
    _release_memory()
    return tokenizer


def _release_memory() -> None:
    """Return freed memory to the system (glibc)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
