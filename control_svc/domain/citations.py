"""Which files a text rests on: the numbers of passages that the model wrote into it.

Passages of searches for the same question have different numbers, so that each names one.
"""

import re
from collections.abc import Sequence
from typing import Final

from control_svc.domain.items import FileCitation, FileSearchCall, Item, Message, Role

_MARKER: Final = re.compile(r"\[(\d{1,3})\]")


def first_number(items: Sequence[Item]) -> int:
    """That of the passages of a search behind the items: numbers begin anew with each question."""
    number = 0
    for item in items:
        match item.content:
            case Message(role=Role.USER):
                number = 0
            case FileSearchCall() as search:
                number = max(number, search.first + len(search.results))
    return number


def citations_of(text: str, searches: Sequence[FileSearchCall]) -> tuple[FileCitation, ...]:
    """The markers such as "[0]" in a text that stand for passages of searches, by their place."""
    results = {
        number: result
        for search in searches
        for number, result in enumerate(search.results, search.first)
    }
    return tuple(
        FileCitation(
            file_id=results[number].file_id,
            filename=results[number].filename,
            marker=found.group(),
            start=found.start(),
            end=found.end(),
        )
        for found in _MARKER.finditer(text)
        if (number := int(found.group(1))) in results
    )
