"""Ids of objects that a dialect creates."""

import secrets


def random_suffix() -> str:
    """The random part of an object id."""
    return secrets.token_hex(16)
