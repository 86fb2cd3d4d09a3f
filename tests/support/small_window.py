"""A scripted model with a small context, for tests of prompts."""

from svc_kit.errors import ContextLengthExceeded
from tests.support.response_client import count_words
from tests.support.scripted_turns import Script, ScriptedTurns, text_script


class SmallWindow(ScriptedTurns):
    """Answers "Fine"."""

    def __init__(self) -> None:
        self.script: Script = text_script("Fine")
        self.window = 40
        """Context length in words, which are tokens."""
        super().__init__(self._choose)

    def _choose(self, request: object) -> Script:
        num_words = count_words(self.requests[-1])
        if num_words > self.window:
            raise ContextLengthExceeded(
                field="messages", prompt_tokens=num_words, context_tokens=self.window
            )
        return self.script

    @property
    def prompt_text(self) -> str:
        parts = [part for message in self.requests[-1].messages for part in message.parts]
        return " | ".join(getattr(part, "text", "") for part in parts)
