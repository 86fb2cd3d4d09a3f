"""Grammar rules for turns that are free text until a marker begins a call."""

import json
import re
from collections.abc import Iterator, Mapping

from inference_svc.structured_output.spec import Reasoning, ToolCallSpec

ControlTokens = Mapping[str, int]
"""Ids of control tokens by their texts."""
ANYTHING = "/(?s:.*)/"


def free_rules(
    calls: ToolCallSpec, thought: Reasoning | None, control: ControlTokens
) -> Iterator[str]:
    """Yield the rules of `start` and of the free text of a turn."""
    barred, by_bytes = list(calls.barred), False
    if thought is None or not (_is_one(thought.begin, control) and _is_one(thought.end, control)):
        yield "start: answer"
    else:
        yield "start: thought" if thought.is_open else "start: opening thought | answer"
        yield "thought: musing (musing_met answer | musing_end)"
        yield from _stretch("musing", thought.end, [], control)
        if not thought.is_open:
            yield from _opening(thought.begin, control)
            # Otherwise reasoning would also match the rule of free text.
            barred += [thought.begin] if thought.begin in control else []
            by_bytes = True
    more = "*" if calls.several else "?"
    yield f"answer: free (free_met calls free){more} free_end"
    yield from _stretch("free", calls.trigger, barred, control, by_bytes=by_bytes)


def _opening(begin: str, control: ControlTokens) -> Iterator[str]:
    yield r"BLANK: /\s*/"
    if begin in control:
        yield f"opening: BLANK <[{control[begin]}]>"
    else:
        yield f"opening[lazy]: BLANK {json.dumps(begin)}"


def _stretch(
    name: str, marker: str, barred: list[str], control: ControlTokens, *, by_bytes: bool = False
) -> Iterator[str]:
    """Yield rules for text up to a marker that contains no `barred` text. If all of these are
    control tokens, the rules are on tokens; `by_bytes` forces rules on bytes, to distinguish the
    text from an alternative that begins with text."""
    begins = [marker, *barred]
    tokens = [control[text] for text in begins if text in control]
    texts = [re.escape(text).replace("/", r"\/") for text in begins if text not in control]
    if not texts and not by_bytes:
        yield f"{name}: <[^{','.join(map(str, tokens))}]>*"
        yield f"{name}_met: <[{control[marker]}]>"
        yield f'{name}_end: ""'
        return
    plain = f"{name.upper()}_PLAIN"
    without = f" & ~/(?s:.*)({'|'.join(texts)})(?s:.*)/" if texts else ""
    yield f"{plain}: {ANYTHING}{without}"
    others = ",".join(str(token) for token in control.values() if token not in tokens)
    yield f"{name}: ({plain} <[{others}]>)*" if others else f'{name}: ""'
    if marker in control:
        yield f"{name}_met: {plain} <[{control[marker]}]>"
    else:
        yield f"{name}_met[lazy]: {plain} {json.dumps(marker)}"
    yield f"{name}_end: {plain}"


def _is_one(marker: str, control: ControlTokens) -> bool:
    """Whether a marker is a single control token or contains none."""
    return marker in control or not any(token in marker for token in control)
