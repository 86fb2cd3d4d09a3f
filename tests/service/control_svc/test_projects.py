"""Two projects never see each other's objects, whatever field another's id is written into."""

from typing import Any

import pytest
from corral.control.v1 import file_service_pb2, upload_service_pb2
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

from svc_kit.errors import DomainError
from svc_kit.rpc_client import translate_errors
from tests.support.control import Client, RunningControl

SERVICES = (
    file_service_pb2.DESCRIPTOR.services_by_name["FileService"],
    upload_service_pb2.DESCRIPTOR.services_by_name["UploadService"],
)
METHODS = [method for service in SERVICES for method in service.methods]


def texts_of(message: Any) -> list[FieldDescriptor]:
    """The fields of a request that hold texts."""
    return [field for field in message.fields if field.type == FieldDescriptor.TYPE_STRING]


async def outcome(client: Client, method: MethodDescriptor, field: str, value: Any) -> str:
    """What a method answers when one of its texts is given, in words."""
    modules: dict[str, Any] = {**vars(file_service_pb2), **vars(upload_service_pb2)}
    request = modules[method.input_type.name](**{field: value})
    kind = "stream" if method.client_streaming else "unary"
    kind += "_stream" if method.server_streaming else "_unary"
    start = getattr(client.channel, kind)(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=modules[method.output_type.name].FromString,
    )
    call = start(iter([request]) if method.client_streaming else request, metadata=client.metadata)
    try:
        with translate_errors():
            answers = [each async for each in call] if method.server_streaming else [await call]
    except DomainError as error:
        return repr(error)
    return str(answers)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_anothers_id_is_as_one_that_never_was(
    running: RunningControl, method: MethodDescriptor
) -> None:
    """Every id of one project, in every text of every RPC of the other: nothing tells it from an
    id that nobody has, and nothing happens to the object."""
    mine, other = running.of_project("mine"), running.of_project("other")
    file = await mine.create(b"secret")
    upload = await mine.create_upload(6)
    part = await mine.add_part(upload.id, b"secret")

    for field in texts_of(method.input_type):
        for foreign in (file.id, upload.id, part):
            unknown = foreign[:-4] + ("0000" if not foreign.endswith("0000") else "1111")
            many = field.is_repeated
            seen = await outcome(other, method, field.name, [foreign] if many else foreign)
            unseen = await outcome(other, method, field.name, [unknown] if many else unknown)
            assert seen.replace(foreign, unknown) == unseen
    assert await mine.read(file.id) == b"secret"
    assert (await mine.complete(upload.id, part)).file.size_bytes == 6


async def test_anothers_part_is_no_part(running: RunningControl) -> None:
    """Even in an upload of one's own."""
    mine, other = running.of_project("mine"), running.of_project("other")
    part = await mine.add_part((await mine.create_upload(6)).id, b"secret")
    upload = await other.create_upload(6)

    with pytest.raises(DomainError, match="no such part"):
        await other.complete(upload.id, part)


async def test_anothers_page_token_and_request_id_mean_nothing(running: RunningControl) -> None:
    """A token is bound to its project; the same request id is another request there."""
    mine, other = running.of_project("mine"), running.of_project("other")
    made = [await mine.create(request_id="one"), await mine.create()]
    token = (await mine.page(page_size=1)).next_page_token

    with pytest.raises(DomainError, match="page_token"):
        await other.page(page_token=token)
    assert (await other.create(request_id="one")).id not in {file.id for file in made}
    assert [file.id for file in (await other.page()).files] != [made[0].id]
