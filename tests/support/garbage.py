"""Finds what only the garbage collector frees: it stays until the next full run, however large it
is."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from google.protobuf.message import Message


@contextmanager
def collecting(package: str) -> Iterator[list[Any]]:
    """A list that has afterwards the messages, and the frames of a package, that were left."""
    gc.collect()
    gc.freeze()  # the run below looks at what is made from here on, not at all that tests have made
    gc.disable()
    found: list[Any] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [each for each in gc.garbage if _is_of_request(each, package)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _is_of_request(item: object, package: str) -> bool:
    if isinstance(item, FrameType):
        return str(item.f_globals.get("__name__")).partition(".")[0] == package
    return isinstance(item, Message)
