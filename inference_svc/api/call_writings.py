"""How enforced tool calls are written: as the model's family writes them, where that is JSON.

A grammar that puts words of another family into a model's mouth costs it what it has learned. Some
families have written calls in several ways; then the grammar leaves the choice to the model.
Arguments in tags or as Python are no JSON that a schema could hold, so such families are made to
write Hermes' notation, which their readers are then exchanged for.
"""

from inference_svc.chat.parsers import CallNotation, hermes, listed, mistral, sections
from inference_svc.constraints.asked import NUMBER, CallWriting

_HERMES = CallWriting(
    head=f'{hermes.BEGIN}\n{{"name": "',
    middle='", "arguments": ',
    tail=f"}}\n{hermes.END}",
    between="\n",
)
_DEEPSEEK, _KIMI = sections.DEEPSEEK, sections.KIMI
_COHERE, _APERTUS = listed.COHERE, listed.APERTUS
WRITINGS: dict[CallNotation, tuple[CallWriting, ...]] = {
    CallNotation.HERMES: (_HERMES,),
    CallNotation.LLAMA: (
        CallWriting(head='{"name": "', middle='", "parameters": ', tail="}", between="; "),
    ),
    CallNotation.MISTRAL: (
        CallWriting(
            before=f"{mistral.BEGIN}[",
            head='{"name": "',
            middle='", "arguments": ',
            tail="}",
            between=", ",
            after="]",
        ),
        CallWriting(head=mistral.BEGIN, middle=mistral.ARGS),
    ),
    CallNotation.DEEPSEEK: (
        CallWriting(
            before=_DEEPSEEK.begins[0],
            head=f"{_DEEPSEEK.call}function{_DEEPSEEK.separator}",
            middle="\n```json\n",
            tail=f"\n```{_DEEPSEEK.call_end}",
            between="\n",
            after=_DEEPSEEK.end,
        ),
        CallWriting(
            before=_DEEPSEEK.begins[0],
            head=_DEEPSEEK.call,
            middle=_DEEPSEEK.separator,
            tail=_DEEPSEEK.call_end,
            after=_DEEPSEEK.end,
        ),
    ),
    CallNotation.KIMI: (
        CallWriting(
            before=_KIMI.begins[0],
            head=f"{_KIMI.call}functions.",
            middle=f":{NUMBER}{_KIMI.separator}",
            tail=_KIMI.call_end,
            after=_KIMI.end,
        ),
    ),
    CallNotation.COHERE: (
        CallWriting(
            before=f"{_COHERE.begin}[\n    ",
            head=f'{{"tool_call_id": "{NUMBER}", "tool_name": "',
            middle='", "parameters": ',
            tail="}",
            between=",\n    ",
            after=f"\n]{_COHERE.end}",
        ),
    ),
    CallNotation.APERTUS: (
        CallWriting(
            before=f"{_APERTUS.begin}[",
            head='{"',
            middle='": ',
            tail="}",
            between=", ",
            after=f"]{_APERTUS.end}",
        ),
    ),
}
"""The ways of the families that write JSON."""
TRIGGERS: dict[CallNotation, str] = {
    CallNotation.HERMES: hermes.BEGIN,
    CallNotation.MISTRAL: mistral.BEGIN,
    CallNotation.DEEPSEEK: _DEEPSEEK.begins[0],
    CallNotation.KIMI: _KIMI.begins[0],
    CallNotation.COHERE: _COHERE.begin,
    CallNotation.APERTUS: _APERTUS.begin,
}
"""What tells a call from free text. Nothing does of Llama's, which are JSON like any other."""
OTHER_TRIGGERS: dict[CallNotation, tuple[str, ...]] = {
    CallNotation.DEEPSEEK: (*_DEEPSEEK.begins[1:], _DEEPSEEK.call),
    CallNotation.KIMI: (*_KIMI.begins[1:], _KIMI.call),
}
"""What its readers take for the beginning of a call besides."""


def enforced_notation(told: CallNotation, *, beside_form: bool) -> CallNotation:
    """The notation in which a model that writes calls as `told` is made to write them.

    Beside a form they have to begin with a marker: an answer in JSON could be taken for a call.
    """
    if told not in WRITINGS or (beside_form and told is CallNotation.LLAMA):
        return CallNotation.HERMES
    return told
