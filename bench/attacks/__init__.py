"""Attacks on a server, each a row of one table, and what they cost the other callers.

A row says what its connections send. `python -m bench.attacks NAME ...` carries it out in a process
of its own; `drill.py` measures a caller's first token and the gateway's memory meanwhile, for the
benchmark and for `make chaos`.
"""

from collections.abc import Mapping
from typing import Final

from bench.attacks import structure, transport
from bench.attacks.attack import Attack

ATTACKS: Final[Mapping[str, Attack]] = {
    each.name: each for each in (*transport.ATTACKS, *structure.ATTACKS)
}
