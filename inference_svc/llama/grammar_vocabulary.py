"""A model's vocabulary as grammars see it.

llguidance's own reader of llama.cpp vocabularies knows one end token where a model may have
several, and takes the table's padding for words; so the table is made here.
"""

import ctypes

from llama_cpp import llama_cpp as native
from llguidance import LLTokenizer

from inference_svc.llama.vocabulary import Vocabulary

_CONTROL = b"\xff"  # begins what no text can match
# Inside strings most tokens may follow, whatever they are: llguidance keeps a table for each of
# these kinds, so that a mask takes microseconds where looking at every token takes a millisecond. A
# table of a large vocabulary is 13 MB; its own other two (any length, white space) save no time
# that could be measured.
_SLICES = [r'[^"\\\x00-\x1F\x7F]{1,10}', r'[^"\\\x00-\x1F\x7F]{1,30}']


def grammar_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Read the whole vocabulary. It must stay open for as long as the tokenizer is used."""
    control = frozenset(vocabulary.control_tokens.values())
    tokens = [
        _CONTROL * (token in control) + piece
        for token, piece in enumerate(vocabulary.every_piece())
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
    _give_memory_back()
    return tokenizer


def _give_memory_back() -> None:
    """Reading a vocabulary takes megabytes that the C library keeps; glibc's can be told not to."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
