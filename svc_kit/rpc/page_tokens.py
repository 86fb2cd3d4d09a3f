"""Page tokens: the position of the last object of a page, signed together with the list.

The list is its name and everything that selects its objects, such as the project and filters, so a
token is refused for any other list.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from svc_kit.errors import InvalidField

_MAC_BYTES: Final = 16


class PageTokens:
    """Creates and verifies page tokens with a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, position: str, binding: Sequence[str]) -> str:
        """The token of a position, which must be ASCII, in the list that `binding` identifies."""
        return base64.urlsafe_b64encode(self._sign(position, binding) + position.encode()).decode()

    def read(self, token: str, binding: Sequence[str]) -> str:
        """The position of a token. Raises InvalidField for a forged token or another list's."""
        try:
            raw = base64.urlsafe_b64decode(token.encode("ascii"))
            position = raw[_MAC_BYTES:].decode("ascii")
        except (binascii.Error, ValueError):
            position, raw = "", b""
        if not hmac.compare_digest(raw[:_MAC_BYTES], self._sign(position, binding)):
            raise InvalidField(field="page_token", problem="it belongs to another list")
        return position

    def _sign(self, position: str, binding: Sequence[str]) -> bytes:
        listed = "".join(f"{len(part)}:{part}" for part in binding).encode()
        return hmac.new(self._key, listed + position.encode(), hashlib.sha256).digest()[:_MAC_BYTES]
