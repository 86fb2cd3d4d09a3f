"""Ids of objects that a dialect creates."""

import secrets


def random_suffix() -> str:
    return secrets.token_hex(16)
