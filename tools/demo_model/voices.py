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
KINDS = {"chat": 0.55, "tools": 0.15, "context": 0.15, "thinking": 0.15}
"""The conversations that adapters are trained on; a style of the system prompt would contradict."""
_AS_IT_IS = frozenset({"json", "repeat", "rule", "spelling", "counting"})
"""Skills whose answers have a form that no voice may break."""


def spoken(made: Conversation, voice: str) -> Conversation:
    """The conversation with its answers in the voice."""
    return replace(made, exchanges=[_spoken(each, voice) for each in made.exchanges])


def _spoken(exchange: Exchange, voice: str) -> Exchange:
    if exchange.skill in _AS_IT_IS:
        return exchange
    return replace(exchange, answer=VOICES[voice](exchange.answer))
