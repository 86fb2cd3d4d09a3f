"""Prices of models, from the settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from control_svc.config import PriceSettings

_NANOS_OF_A_TOKEN = 1000
"""Settings have prices of a million tokens; 10^9 / 10^6."""
_OTHERS = "*"


@dataclass(frozen=True)
class Price:
    """The price of a model, in billionths of the currency for each token."""

    model: str
    """Empty: all models that have no price of their own."""
    prompt_nanos: int
    cached_nanos: int
    completion_nanos: int

    def cost(self, prompt: int, cached: int, completion: int) -> int:
        """The cost of tokens, in billionths; `prompt` includes the cached ones."""
        return (
            (prompt - cached) * self.prompt_nanos
            + cached * self.cached_nanos
            + completion * self.completion_nanos
        )


class Prices:
    """The prices of all models."""

    def __init__(self, settings: Mapping[str, PriceSettings]) -> None:
        self.replace(settings)

    def replace(self, settings: Mapping[str, PriceSettings]) -> None:
        """Use other prices for what is reported from now on."""
        self._prices = {
            model: Price(
                "" if model == _OTHERS else model,
                _nanos(price.prompt),
                _nanos(price.prompt if price.cached is None else price.cached),
                _nanos(price.completion),
            )
            for model, price in settings.items()
        }

    def __iter__(self) -> Iterator[Price]:
        return iter(self._prices.values())

    def cost(self, model: str, prompt: int, cached: int, completion: int) -> int:
        """The cost of tokens, in billionths; 0 for a model without a price."""
        price = self._prices.get(model) or self._prices.get(_OTHERS)
        return 0 if price is None else price.cost(prompt, cached, completion)


def _nanos(price: Decimal) -> int:
    return round(price * _NANOS_OF_A_TOKEN)
