"""Grammar rules for turns that are free text until a marker begins a call."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from inference_svc.structured_output.spec import ID, NUMBER, SPACE, Reasoning, ToolCallSpec

ControlTokens = Mapping[str, int]
"""Ids of control tokens by their texts."""
ANYTHING = "/(?s:.*)/"
_PLACEHOLDERS = {NUMBER: "DIGITS", SPACE: "GAP", ID: "ID"}
PLACEHOLDER_RULES = ("DIGITS: /[0-9]{1,4}/", r"GAP: /[ \t\n]{0,4}/", "ID: /[A-Za-z0-9_-]{1,64}/")


class GrammarMarkers:
    """Writes texts in llguidance's syntax: control tokens by id, placeholders, and strings."""

    def __init__(self, control: ControlTokens) -> None:
        self._special = {token: f"<[{number}]>" for token, number in control.items()}
        self._special |= _PLACEHOLDERS
        texts = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, texts))})")

    def write(self, text: str) -> str:
        pieces = self._pattern.split(text)
        return " ".join(self._special.get(each) or json.dumps(each) for each in pieces if each)


def escape(text: str) -> str:
    """A text in a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")


def anything_but(excludes: Sequence[str]) -> str:
    """A terminal of any text without one of these."""
    texts = "|".join(map(escape, excludes))
    return f"{ANYTHING} & ~/(?s:.*)({texts})(?s:.*)/" if texts else ANYTHING


def free_rules(
    calls: ToolCallSpec, thought: Reasoning | None, control: ControlTokens
) -> Iterator[str]:
    """Yield the rules of `start` and of the free text of a turn."""
    if calls.headers:
        yield from _message_rules(calls, control, in_text=thought is not None and thought.is_open)
        return
    excludes, on_bytes = list(calls.excludes), False
    if thought is None or not (
        _is_supported(thought.begin, control) and _is_supported(thought.end, control)
    ):
        yield "start: answer"
    else:
        yield "start: thought" if thought.is_open else "start: opening thought | answer"
        yield "thought: reasoning (reasoning_marker_0 answer | reasoning_end)"
        yield from _text_until("reasoning", (thought.end,), list(thought.excludes), control)
        if not thought.is_open:
            yield from _opening(thought.begin, control)
            # Otherwise reasoning would also match the rule of free text.
            excludes += [thought.begin] if thought.begin in control else []
            on_bytes = True
    if calls.begin:
        opened = () if thought is None or thought.is_open else (thought.begin,)
        tokens = ",".join(str(token) for text, token in control.items() if text not in opened)
        yield f"answer: calls | OTHER{f' (<[{tokens}]> ANYTHING)*' if tokens else ''}"
        yield f"OTHER: {ANYTHING} & ~/{escape(calls.begin)}(?s:.*)/"
        yield f"ANYTHING: {ANYTHING}"
        return
    triggers = [each for each in calls.triggers if _is_supported(each, control)]
    more = "*" if calls.several else "?"
    each = (
        f"free_marker_{number} calls_from_{calls.triggers.index(trigger)}"
        for number, trigger in enumerate(triggers)
    )
    several = f"(({' | '.join(each)}) free){more}" if triggers else ""
    yield f"answer: free {several} free_end"
    yield from _text_until("free", triggers, excludes, control, on_bytes=on_bytes or not triggers)


def _message_rules(calls: ToolCallSpec, control: ControlTokens, *, in_text: bool) -> Iterator[str]:
    """Yield rules of a turn whose calls begin in headers; `in_text`: it does not start in one."""
    headers = [control[text] for text in calls.headers if text in control]
    others = [token for token in control.values() if token not in headers]
    parts = []
    if others:
        parts.append(f"<[{','.join(map(str, others))}]> ANYTHING")
    if headers:
        parts.append(f"<[{','.join(map(str, headers))}]> head")
    more = f"({' | '.join(parts)})*" if parts else ""
    yield f"ANYTHING: {ANYTHING}"
    yield f"start: {'ANYTHING' if in_text or not headers else 'head'} {more}"
    called = (f"free_marker_{i} calls_from_{i}" for i in range(len(calls.triggers)))
    yield f"head: free_end | {' | '.join(called)}"
    yield from _text_until("free", calls.triggers, [], {})


def _opening(begin: str, control: ControlTokens) -> Iterator[str]:
    yield r"BLANK: /\s*/"
    if begin in control:
        yield f"opening: BLANK <[{control[begin]}]>"
    else:
        yield f"opening[lazy]: BLANK {json.dumps(begin)}"


def _text_until(
    name: str,
    markers: Sequence[str],
    excludes: list[str],
    control: ControlTokens,
    *,
    on_bytes: bool = False,
) -> Iterator[str]:
    """Yield rules for text that ends at one of the markers and contains none of `excludes`.

    If the markers and `excludes` are control tokens, the rules match tokens, otherwise bytes.
    `on_bytes` forces rules on bytes, to distinguish the text from an alternative that begins with
    text.
    """
    begins = [*markers, *excludes]
    tokens = [control[text] for text in begins if text in control]
    texts = [text for text in begins if text not in control]
    plain = f"{name.upper()}_PLAIN"
    ended = [f"{plain} <[{control[text]}]>" if text in control else "" for text in markers]
    if not texts and not on_bytes:
        yield f"{name}: <[^{','.join(map(str, tokens))}]>*"
        yield f'{name}_end: ""'
        ended = [text.removeprefix(plain) for text in ended]
    else:
        yield f"{plain}: {anything_but(texts)}"
        others = ",".join(str(token) for token in control.values() if token not in tokens)
        yield f"{name}: ({plain} <[{others}]>)*" if others else f'{name}: ""'
        yield f"{name}_end: {plain}"
    for number, (text, tokens_text) in enumerate(zip(markers, ended, strict=True)):
        rule = f"{name}_marker_{number}"
        if tokens_text:
            yield f"{rule}: {tokens_text}"
        else:
            yield f"{rule}[lazy]: {plain} {json.dumps(text)}"


def _is_supported(marker: str, control: ControlTokens) -> bool:
    """Whether a marker of reasoning is a single control token, or contains none."""
    return marker in control or not any(token in marker for token in control)
