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
    barred, on_bytes = list(calls.barred), False
    if thought is None or not (
        _is_supported(thought.begin, control) and _is_supported(thought.end, control)
    ):
        yield "start: answer"
    else:
        yield "start: thought" if thought.is_open else "start: opening thought | answer"
        yield "thought: reasoning (reasoning_marker answer | reasoning_end)"
        yield from _text_until("reasoning", thought.end, [], control)
        if not thought.is_open:
            yield from _opening(thought.begin, control)
            # Otherwise reasoning would also match the rule of free text.
            barred += [thought.begin] if thought.begin in control else []
            on_bytes = True
    more = "*" if calls.several else "?"
    yield f"answer: free (free_marker calls free){more} free_end"
    yield from _text_until("free", calls.trigger, barred, control, on_bytes=on_bytes)


def _opening(begin: str, control: ControlTokens) -> Iterator[str]:
    yield r"BLANK: /\s*/"
    if begin in control:
        yield f"opening: BLANK <[{control[begin]}]>"
    else:
        yield f"opening[lazy]: BLANK {json.dumps(begin)}"


def _text_until(
    name: str, marker: str, barred: list[str], control: ControlTokens, *, on_bytes: bool = False
) -> Iterator[str]:
    """Yield rules for text that ends at `marker` and contains no `barred` text.

    If the marker and all barred texts are control tokens, the rules match tokens, otherwise bytes.
    `on_bytes` forces rules on bytes, to distinguish the text from an alternative that begins with
    text.
    """
    begins = [marker, *barred]
    tokens = [control[text] for text in begins if text in control]
    texts = [re.escape(text).replace("/", r"\/") for text in begins if text not in control]
    if not texts and not on_bytes:
        yield f"{name}: <[^{','.join(map(str, tokens))}]>*"
        yield f"{name}_marker: <[{control[marker]}]>"
        yield f'{name}_end: ""'
        return
    plain = f"{name.upper()}_PLAIN"
    without = f" & ~/(?s:.*)({'|'.join(texts)})(?s:.*)/" if texts else ""
    yield f"{plain}: {ANYTHING}{without}"
    others = ",".join(str(token) for token in control.values() if token not in tokens)
    yield f"{name}: ({plain} <[{others}]>)*" if others else f'{name}: ""'
    if marker in control:
        yield f"{name}_marker: {plain} <[{control[marker]}]>"
    else:
        yield f"{name}_marker[lazy]: {plain} {json.dumps(marker)}"
    yield f"{name}_end: {plain}"


def _is_supported(marker: str, control: ControlTokens) -> bool:
    """Whether a marker of reasoning is a single control token, or contains none."""
    return marker in control or not any(token in marker for token in control)
