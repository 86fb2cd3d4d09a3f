"""Deterministic authenticated encryption (AES-SIV) of texts that callers store and send back.

A text can be decrypted in the place that it was encrypted for, and nowhere else.
"""

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

KEY_BYTES: Final = 64
_VERSION: Final = b"\x01"


class Sealer:
    """Seals and opens texts with the installation's key."""

    def __init__(self, key: bytes) -> None:
        """`key` has `KEY_BYTES`."""
        self._cipher = AESSIV(key)

    def seal(self, place: str, text: str) -> str:
        """The text, to be opened in the same place alone."""
        sealed = self._cipher.encrypt(text.encode("utf-8", "surrogatepass"), [place.encode()])
        return base64.urlsafe_b64encode(_VERSION + sealed).decode()

    def open(self, place: str, sealed: str) -> str | None:
        """The text again; None: it was not sealed here for this place, or was changed."""
        try:
            raw = base64.b64decode(sealed.encode("ascii"), altchars=b"-_", validate=True)
            if raw[:1] != _VERSION:
                return None
            return self._cipher.decrypt(raw[1:], [place.encode()]).decode("utf-8", "surrogatepass")
        except (ValueError, binascii.Error, InvalidTag):
            return None
