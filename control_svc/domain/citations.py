"""Which files a text rests on: the numbers of passages that the model wrote into it."""

import re
from collections.abc import Sequence
from typing import Final

from control_svc.domain.items import FileCitation, SearchResult

_MARKER: Final = re.compile(r"\[(\d{1,3})\]")


def citations_of(text: str, results: Sequence[SearchResult]) -> tuple[FileCitation, ...]:
    """The markers such as "[0]" in a text that stand for passages of a search, by their place."""
    return tuple(
        FileCitation(
            file_id=results[number].file_id,
            filename=results[number].filename,
            marker=found.group(),
            start=found.start(),
            end=found.end(),
        )
        for found in _MARKER.finditer(text)
        if (number := int(found.group(1))) < len(results)
    )
