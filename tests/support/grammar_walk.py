"""Compiled grammars, and random texts that they allow."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher

from inference_svc.chat.parsers.formats import Family
from inference_svc.structured_output.compile_job import byte_tokenizer, compile_grammar
from inference_svc.structured_output.matcher import build_matcher
from inference_svc.structured_output.spec import SPACE, OutputSpec

MAX_TOKENS: Final = 20_000
SIZE, END, FIRST_CONTROL = 512, 511, 300
Endings = Sequence[set[str]]
JSON_ENDINGS: Final = (set('"}]0'), {'"}'})


def compile_spec(spec: OutputSpec) -> dict[str, Any]:
    """The result of the sandbox job."""
    asked = json.loads(json.dumps(asdict(spec)))
    vocabulary = {"size": SIZE, "control": {}, "ends": [END]}
    return compile_grammar({"asked": asked, "vocabulary": vocabulary})


class Walk:
    """Random text of a grammar. It often tries the texts that end something, so that it ends."""

    def __init__(self, endings: Endings, control: dict[str, int], seed: int) -> None:
        self._endings = endings
        self._control = control
        self._texts = {token: text for text, token in control.items()}
        self._random = random.Random(seed)

    def text(self, grammar: str) -> str:
        matcher = build_matcher(byte_tokenizer(SIZE, self._control, [END]), grammar)
        tokens: list[int] = []
        while not (matcher.is_accepting() and (matcher.is_stopped() or self._ends(tokens))):
            assert len(tokens) < MAX_TOKENS, "".join(self._decode(tokens))
            chosen = self._next(matcher, len(tokens))
            if not chosen and matcher.is_accepting():
                break
            assert matcher.consume_tokens(chosen)
            tokens += chosen
        return "".join(self._decode(tokens))

    def _ends(self, tokens: list[int]) -> bool:
        return self._random.random() < 0.5 + len(tokens) / 1000

    def _next(self, matcher: LLMatcher, num_tokens: int) -> list[int]:
        forced = matcher.compute_ff_tokens()
        if forced:
            return list(forced)
        if self._random.random() < 0.2 + num_tokens / 500:
            for texts in self._endings:
                ends = [tokens for text in texts if (tokens := list(self._encode(text)))]
                ends = [each for each in ends if matcher.validate_tokens(each) == len(each)]
                if ends and self._random.random() < 0.5:
                    return self._random.choice(ends)
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:END])
        return [int(self._random.choice(allowed))] if allowed.size else []

    def _encode(self, text: str) -> Iterator[int]:
        while text:
            marker = next((each for each in self._control if text.startswith(each)), "")
            if marker:
                yield self._control[marker]
            else:
                yield from text[0].encode()
            text = text[len(marker) or 1 :]

    def _decode(self, tokens: list[int]) -> Iterator[str]:
        written = bytearray()
        for token in tokens:
            if token < 256:
                written.append(token)
            else:
                yield written.decode() + self._texts.get(token, "")
                written.clear()
        yield written.decode()


def endings(family: Family, keys: Sequence[str]) -> Endings:
    syntaxes = family.syntaxes
    arguments = [syntax.arguments for syntax in syntaxes if syntax.arguments]
    texts = {each.end.replace("{key}", key) for each in arguments for key in keys}
    texts |= {text for each in arguments for text in each.excludes}
    texts |= {quotes[1] for each in arguments for quotes in each.quotes or ()}
    texts |= {each.item[1] for each in arguments if each.item}
    texts |= {syntax.tail.replace(SPACE, "") for syntax in syntaxes}
    texts = {text.replace(SPACE, "") for text in texts}
    inner = texts | {f"\n{text}" for text in texts} | set('"}])\n<>') | {'"}', "'"}
    return {syntax.after.replace(SPACE, "") for syntax in syntaxes}, inner


def accepts(grammar: str, text: str) -> bool:
    """Whether a text without control tokens is a complete output."""
    matcher = build_matcher(byte_tokenizer(SIZE, {}, [END]), grammar)
    tokens = list(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
