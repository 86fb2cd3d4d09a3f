"""Deterministic authenticated encryption (AES-SIV) of texts that callers store and send back."""

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

KEY_BYTES: Final = 64
_VERSION: Final = b"\x01"


class Sealer:
    """Encrypts (seals) and decrypts (opens) texts with the installation's key."""

    def __init__(self, key: bytes) -> None:
        """`key` must have `KEY_BYTES` bytes."""
        self._cipher = AESSIV(key)

    def seal(self, context: str, text: str) -> str:
        """Encrypt a text; it can be opened only with the same `context`."""
        sealed = self._cipher.encrypt(text.encode("utf-8", "surrogatepass"), [context.encode()])
        return base64.urlsafe_b64encode(_VERSION + sealed).decode()

    def open(self, context: str, sealed: str) -> str | None:
        """Decrypt a text; None if it was altered or sealed with another key or context."""
        try:
            raw = base64.b64decode(sealed.encode("ascii"), altchars=b"-_", validate=True)
            if raw[:1] != _VERSION:
                return None
            return self._cipher.decrypt(raw[1:], [context.encode()]).decode(
                "utf-8", "surrogatepass"
            )
        except (ValueError, binascii.Error, InvalidTag):
            return None
