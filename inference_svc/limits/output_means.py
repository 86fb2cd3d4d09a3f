"""The output that a request will probably have, which it reserves of limits of tokens and costs."""

from typing import Final

_FIRST_MEAN: Final = 256
"""Expected output, in tokens, of a model that has not answered yet."""


class OutputMeans:
    """The mean output of each model, in tokens, with more weight on recent requests."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def expect(self, model: str, max_tokens: int) -> int:
        """The probable output of a choice with this limit."""
        return min(max_tokens, round(self._means.get(model, _FIRST_MEAN)))

    def add(self, model: str, num_tokens: float) -> None:
        """Add the output of a choice; inputs of embeddings have none."""
        if not num_tokens:
            return
        mean = self._means.get(model, _FIRST_MEAN)
        self._means[model] = mean + (num_tokens - mean) / 16
