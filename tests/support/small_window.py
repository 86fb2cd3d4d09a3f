"""A scripted model with a small window, for tests of what it is shown."""

from svc_kit.errors import ContextLengthExceeded
from tests.support.response_client import words_of
from tests.support.scripted_turns import Script, ScriptedTurns, says


class SmallWindow(ScriptedTurns):
    """Says "Fine", and has a small window."""

    def __init__(self) -> None:
        self.script: Script = says("Fine")
        self.window = 40
        """Tokens, which are words."""
        super().__init__(self._choose)

    def _choose(self, request: object) -> Script:
        num_words = words_of(self.requests[-1])
        if num_words > self.window:
            raise ContextLengthExceeded(
                field="messages", prompt_tokens=num_words, context_tokens=self.window
            )
        return self.script

    @property
    def shown(self) -> str:
        """All texts of the last prompt."""
        parts = [part for message in self.requests[-1].messages for part in message.parts]
        return " | ".join(getattr(part, "text", "") for part in parts)
