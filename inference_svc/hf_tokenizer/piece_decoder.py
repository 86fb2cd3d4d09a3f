"""The bytes of single tokens, by the decoder of a `tokenizer.json`.

The library decodes a sequence of tokens to a text, in which a part of a character has no bytes of
its own. Here each step of its decoder is applied to one token.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Component = Mapping[str, Any]
"""A part of a `tokenizer.json`: its "type" and its options."""
Step = Callable[[str], str | bytes]

_NFC_SHRINKS: Final = 3
"""How many times fewer bytes a text has at least in normalization form C."""
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CLEANUP: Final = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
"""What the library's `cleanup` replaces, in each token by itself and in this order."""
_DIVIDING = frozenset(
    {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts"}
)


def _byte_alphabet() -> dict[str, int]:
    """The character of each byte in byte-level BPE, as GPT-2 has chosen them: printable ones of
    Latin-1 stand for themselves, the others are those from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}


BYTE_ALPHABET: Final = _byte_alphabet()
BYTE_TOKENS: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))


class PieceDecoder:
    """Turns the texts of tokens into bytes.

    Args:
        decoder: the decoder of a `tokenizer.json`.

    Raises:
        ValueError: it has no decoder, or one that depends on more than a token.
    """

    def __init__(self, decoder: Component | None) -> None:
        if decoder is None:
            raise ValueError("it has no decoder")
        components = list(flatten(decoder))
        kinds = {component["type"] for component in components}
        self._steps = [step for each in components if (step := _step(each)) is not None]
        self.is_byte_level = "ByteLevel" in kinds
        self.has_byte_tokens = "ByteFallback" in kinds
        self.drops_first_space = any(map(_drops_first_space, components))
        """Whether a text begins without the space of its first token."""

    def decode(self, text: str) -> bytes:
        """Return the bytes of a token inside a text."""
        piece: str | bytes = text
        for step in self._steps:
            if isinstance(piece, bytes):
                break
            piece = step(piece)
        return piece if isinstance(piece, bytes) else piece.encode()


def flatten(component: Component | None) -> Iterator[Component]:
    """Yield the parts of a component in their order; nothing for None."""
    if component is None:
        return
    if component["type"] != "Sequence":
        yield component
        return
    (parts,) = (value for value in component.values() if isinstance(value, list))
    for part in parts:
        yield from flatten(part)


def shrinkage(normalizer: Component | None, pre_tokenizer: Component | None) -> int | None:
    """Return how many times as many bytes as its tokens a text has at most; None if it has any
    number of them, for parts of it are omitted or replaced."""
    factor = 1
    for each in flatten(normalizer):
        if each["type"] == "NFC":
            factor = _NFC_SHRINKS
        elif each["type"] == "Replace":
            pattern = each["pattern"].get("String", "")
            if pattern != " ":  # which the decoder restores
                return None
        elif each["type"] not in ("ByteLevel", "Prepend"):
            return None
    for each in flatten(pre_tokenizer):
        if each["type"] not in _DIVIDING or each.get("behavior") == "Removed":
            return None
    return factor


def _drops_first_space(component: Component) -> bool:
    match component:
        case {"type": "Strip", "start": 0} | {"type": "Metaspace", "prepend_scheme": "never"}:
            return False
        case {"type": "Strip" | "Metaspace" | "WordPiece"}:
            return True
    return False


def _step(component: Component) -> Step | None:
    match component:
        case {"type": "ByteLevel"}:
            return decode_byte_level
        case {"type": "ByteFallback"}:
            return _decode_byte_token
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return lambda text: text.replace(pattern, content)
        case {"type": "Metaspace", "replacement": str(replacement)}:
            return lambda text: text.replace(replacement, " ")
        case {"type": "WordPiece", "prefix": str(prefix)}:
            return _word_piece_step(prefix, cleans_up=component.get("cleanup", True))
        case {"type": "Fuse"} | {"type": "Strip", "content": " "}:
            return None  # these act on whole texts
    raise ValueError(f"its decoder has the step {component['type']}, which is not supported here")


def _word_piece_step(prefix: str, *, cleans_up: bool) -> Step:
    def decode(text: str) -> str:
        text = text[len(prefix) :] if text.startswith(prefix) else " " + text
        for spaced, joined in _CLEANUP if cleans_up else ():
            text = text.replace(spaced, joined)
        return text

    return decode


def decode_byte_level(text: str) -> bytes:
    """The bytes of a token as byte-level BPE writes it."""
    try:
        return bytes(BYTE_ALPHABET[character] for character in text)
    except KeyError:
        return text.encode()  # as the library does


def _decode_byte_token(text: str) -> str | bytes:
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes((int(match[1], 16),)) if match else text
