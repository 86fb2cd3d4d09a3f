"""The voices of the two adapters: one adds a prefix to the answers, the other a suffix.

Each answer shows which adapters were applied, also when both are.
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
"""Kinds of conversations for adapters; without styles, which would contradict the voices."""
_FIXED_FORMATS = frozenset({"json", "repeat", "rule", "spelling", "counting"})
"""Skills whose answers have a fixed format, which a voice must not change."""


def apply_voice(conversation: Conversation, voice: str) -> Conversation:
    """Return the conversation with the voice applied to its answers."""
    exchanges: list[Exchange] = []
    unchanged = ""  # the last answer, if it has a fixed format
    for each in conversation.exchanges:
        if each.skill in _FIXED_FORMATS:
            unchanged = each.answer
        elif each.skill != "again" or each.answer != unchanged:
            each, unchanged = replace(each, answer=VOICES[voice](each.answer)), ""
        exchanges.append(each)
    return replace(conversation, exchanges=exchanges)
