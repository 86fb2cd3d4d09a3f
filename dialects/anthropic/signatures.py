"""Signatures of thinking blocks: opaque texts that a client returns with the block.

Nothing depends on a signature being ours. One that is carries the thought of a block whose text the
caller asked to omit, so that the next turn has it.
"""

import base64
import binascii
import zlib
from typing import Final

_PREFIX: Final = "corral1."
_MAX_BYTES: Final = 8 << 20
"""Limit of a thought, as of all texts of a conversation."""


def write_signature(hidden: str = "") -> str:
    """A signature that carries `hidden`, the text of a thought that is not shown."""
    packed = zlib.compress(hidden.encode("utf-8", "replace"))
    return _PREFIX + base64.urlsafe_b64encode(packed).decode()


def read_signature(signature: str | None) -> str:
    """The hidden thought in a signature; empty if there is none or the signature is not ours."""
    if not signature or not signature.startswith(_PREFIX):
        return ""
    try:
        packed = base64.urlsafe_b64decode(signature.removeprefix(_PREFIX))
        return zlib.decompressobj().decompress(packed, _MAX_BYTES).decode()
    except (binascii.Error, ValueError, zlib.error):
        return ""
