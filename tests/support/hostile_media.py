"""Files that a media decoder must refuse."""

from collections.abc import Awaitable, Callable, Mapping

import pytest

from svc_kit.errors import DomainError, InvalidField

FIELD = "messages[0].content[1]"


async def refusal(decoding: Awaitable[object]) -> DomainError:
    with pytest.raises(DomainError) as raised:
        await decoding
    return raised.value


async def check_refusals(
    decode: Callable[[bytes], Awaitable[object]], cases: Mapping[str, tuple[bytes, str]]
) -> None:
    """Decode the file of each case: the error must name `FIELD` and contain the reason."""
    problems = {}
    for name, (data, reason) in cases.items():
        error = await refusal(decode(data))
        assert (type(error), error.field) == (InvalidField, FIELD)
        if reason not in error.message:
            problems[name] = error.message

    assert problems == {}
