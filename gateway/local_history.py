"""What a connection remembers of responses that are stored nowhere, so that it can go on from them.

Only the connection that made them knows these ids. What it remembers is bounded; the oldest are
forgotten first, and a continuation that failed takes the response that it went on from with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from corral.control.v1 import item_pb2, response_pb2

MOST_RESPONSES: Final = 16


@dataclass(frozen=True)
class _Past:
    """How a response was reached."""

    base: str
    """The stored response before the items; empty: none."""
    items: tuple[item_pb2.Item, ...]
    num_bytes: int


class LocalHistory:
    """The responses of one connection that are stored nowhere."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pasts: dict[str, _Past] = {}

    def resumed(self, asked: response_pb2.NewResponse) -> response_pb2.NewResponse:
        """The same request, in words that the service understands: with the items themselves in
        the place of an id that only this connection knows."""
        past = self._pasts.get(asked.previous_response_id)
        if past is None:
            return asked
        resumed = response_pb2.NewResponse(
            settings=asked.settings, previous_response_id=past.base, input=past.items
        )
        resumed.input.extend(asked.input)
        return resumed

    def keep(
        self,
        response_id: str,
        asked: response_pb2.NewResponse,
        output: Iterable[item_pb2.Item],
    ) -> None:
        """Remember a response: `asked` is the request as the service got it."""
        items = (*asked.input, *output)
        num_bytes = sum(item.ByteSize() for item in items)
        self._pasts[response_id] = _Past(asked.previous_response_id, items, num_bytes)
        while len(self._pasts) > MOST_RESPONSES or self._num_bytes > self._most_bytes:
            del self._pasts[next(iter(self._pasts))]

    def forget(self, response_id: str) -> None:
        """Forget a response that could not be gone on from."""
        self._pasts.pop(response_id, None)

    @property
    def _num_bytes(self) -> int:
        return sum(past.num_bytes for past in self._pasts.values())
