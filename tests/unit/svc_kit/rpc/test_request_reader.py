"""Where the messages of calls are parsed."""

import threading
from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.errors import OutOfRange
from svc_kit.rpc.request_reader import RequestReader
from svc_kit.settings.groups import ServerSettings


class Call:
    """The context of a call with one message."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    async def read(self) -> bytes:
        return self._message


@pytest.mark.parametrize(("num_bytes", "in_a_thread"), [(1000, False), (10**6, True)])
async def test_large_messages_are_parsed_in_threads(num_bytes: int, in_a_thread: bool) -> None:
    """So that other calls go on meanwhile."""
    reader, call = RequestReader(ServerSettings()), Call(b"x" * num_bytes)
    context: Any = call

    def parse(raw: bytes) -> tuple[int, int]:
        return len(raw), threading.get_ident()

    parsed = [await reader.read_one(context, parse)]
    parsed.append(await anext(reader.read_each(context, parse, is_long_lived=False)))

    for length, thread in parsed:
        assert length == num_bytes
        assert (thread != threading.get_ident()) == in_a_thread


def test_a_message_beyond_a_limit_of_its_proto_is_refused() -> None:
    """When it is parsed, which is after the call is authenticated."""
    parse = RequestReader(ServerSettings()).parser(
        "/m", pb.ListModelsRequest.FromString, is_public=False
    )

    assert parse(pb.ListModelsRequest(page_size=1).SerializeToString()).page_size == 1
    with pytest.raises(OutOfRange) as caught:
        parse(pb.ListModelsRequest(page_size=-1).SerializeToString())
    assert caught.value == OutOfRange(field="page_size", value=-1, minimum=0)
