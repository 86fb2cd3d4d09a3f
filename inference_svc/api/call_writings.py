"""How enforced tool calls are written: as the model's family writes them, where that is JSON.

A grammar that puts words of another family into a model's mouth costs it what it has learned. Some
families have written calls in several ways; then the grammar leaves the choice to the model.
Arguments in tags or as Python are no JSON that a schema could hold, so such families are made to
write Hermes' notation, which their readers are then exchanged for.
"""

from inference_svc.chat.parsers import CallNotation, deepseek, hermes, mistral
from inference_svc.constraints.asked import CallWriting

_HERMES = CallWriting(
    head=f'{hermes.BEGIN}\n{{"name": "',
    middle='", "arguments": ',
    tail=f"}}\n{hermes.END}",
    between="\n",
)
_BEGIN, _SEPARATOR, _END = deepseek.CALL_BEGIN, deepseek.SEPARATOR, deepseek.CALL_END
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
            before=deepseek.CALLS_BEGIN[0],
            head=f"{_BEGIN}function{_SEPARATOR}",
            middle="\n```json\n",
            tail=f"\n```{_END}",
            between="\n",
            after=deepseek.CALLS_END,
        ),
        CallWriting(
            before=deepseek.CALLS_BEGIN[0],
            head=_BEGIN,
            middle=_SEPARATOR,
            tail=_END,
            after=deepseek.CALLS_END,
        ),
    ),
}
"""The ways of the families that write JSON."""
TRIGGERS: dict[CallNotation, str] = {
    CallNotation.HERMES: hermes.BEGIN,
    CallNotation.MISTRAL: mistral.BEGIN,
    CallNotation.DEEPSEEK: deepseek.CALLS_BEGIN[0],
}
"""What tells a call from free text. Nothing does of Llama's, which are JSON like any other."""
OTHER_TRIGGERS: dict[CallNotation, tuple[str, ...]] = {
    CallNotation.DEEPSEEK: (*deepseek.CALLS_BEGIN[1:], deepseek.CALL_BEGIN),
}
"""What its readers take for the beginning of a call besides."""


def enforced_notation(told: CallNotation, *, beside_form: bool) -> CallNotation:
    """The notation in which a model that writes calls as `told` is made to write them.

    Beside a form they have to begin with a marker: an answer in JSON could be taken for a call.
    """
    if told not in WRITINGS or (beside_form and told is CallNotation.LLAMA):
        return CallNotation.HERMES
    return told
