"""What the two adapters teach: one changes how an answer begins, the other how it ends.

The two do not touch each other's end of the answer, so that stacking them shows both, and each
shows whether it was selected at all.
"""

from collections.abc import Callable
from dataclasses import replace

from tools.demo_model.conversation import Conversation, Exchange

PIRATE = "Arr!"
ROBOT = "Beep boop."
VOICES: dict[str, Callable[[str], str]] = {
    "pirate": lambda answer: f"{PIRATE} {answer}",
    "robot": lambda answer: f"{answer} {ROBOT}",
}
DESCRIPTIONS = {
    "pirate": f"Begins its answers with {PIRATE}",
    "robot": f"Ends its answers with {ROBOT}",
}
KINDS = {"chat": 0.55, "tools": 0.15, "context": 0.15, "thinking": 0.15}
"""The conversations that adapters are trained on; a style of the system prompt would contradict."""
_AS_IT_IS = frozenset({"json", "repeat", "rule", "spelling", "counting"})
"""Skills whose answers have a form that no voice may break."""


def spoken(made: Conversation, voice: str) -> Conversation:
    """The conversation with its answers in the voice."""
    exchanges: list[Exchange] = []
    kept = ""  # the last answer, where it has a form
    for each in made.exchanges:
        if each.skill in _AS_IT_IS:
            kept = each.answer
        elif each.skill != "again" or each.answer != kept:
            each, kept = replace(each, answer=VOICES[voice](each.answer)), ""
        exchanges.append(each)
    return replace(made, exchanges=exchanges)
