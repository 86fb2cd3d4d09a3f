"""Pictures and documents of items on their way to the inference service."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import item_pb2, run_pb2, run_service_pb2
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.inference.v1 import chat_pb2

from svc_kit.errors import FileNotFound, InvalidField, UnsupportedField
from svc_kit.rpc.client import translate_errors
from tests.support.batches import BatchClient, batch_line
from tests.support.control import Client, RunningControl, run_control, write_service_token
from tests.support.conversation_client import ConversationClient, make_message
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_inference_service
from tests.support.response_client import ResponseClient
from tests.support.threads import ThreadClient, make_new_message

PNG = b"\x89PNG\r\n\x1a\n" + bytes(200_000)
PDF = b"%PDF-1.7"
ADDRESS = "https://host/cat.png"
Parts = Sequence[chat_pb2.ContentPart]


@asynccontextmanager
async def run_with_model(folder: Path) -> AsyncIterator[tuple[RunningControl, FakeInference]]:
    fake = FakeInference()
    async with (
        run_inference_service(fake, service_token_file=write_service_token(folder)) as inference,
        run_control(folder, inference_target=str(inference.address)) as control,
    ):
        yield control, fake


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[RunningControl, FakeInference]]:
    async with run_with_model(tmp_path) as running:
        yield running


def image(**fields: str) -> item_pb2.ItemPart:
    return item_pb2.ItemPart(image=item_pb2.ImagePart(**fields))


def document(**fields: str) -> item_pb2.ItemPart:
    return item_pb2.ItemPart(file=item_pb2.FilePart(**fields))


def user_message(*parts: item_pb2.ItemPart) -> item_pb2.Item:
    message = item_pb2.MessageItem(role=item_pb2.ITEM_ROLE_USER, parts=parts)
    return item_pb2.Item(message=message)


def prompt(fake: FakeInference) -> list[Parts]:
    """The parts of each message of the last turn."""
    return [message.parts for message in fake.calls.requests[-1].conversation.messages]


async def run_thread(client: Client, thread_id: str) -> run_pb2.Run:
    """Run an assistant on a thread, and wait for the end of the run."""
    stub = RunServiceStub(client.channel)
    assistant = await ThreadClient(client).create_assistant(model="fake")
    options = run_service_pb2.RunOptions(assistant_id=assistant.id)
    create = run_service_pb2.CreateRunRequest(thread_id=thread_id, run=options)
    run = (await client.call(stub.CreateRun, create)).run
    watch = run_service_pb2.WatchRunRequest(thread_id=thread_id, run_id=run.id)
    with translate_errors():
        async for _ in stub.WatchRun(watch, metadata=client.metadata):
            pass
    get = run_service_pb2.GetRunRequest(thread_id=thread_id, run_id=run.id)
    return (await client.call(stub.GetRun, get)).run


async def test_pictures_and_documents_of_a_response_reach_the_model(
    both: tuple[RunningControl, FakeInference],
) -> None:
    """In messages and outputs of functions, from URLs and files, also in later responses."""
    control, fake = both
    client = control.client
    png = await client.create(PNG, filename="cat.png")
    pdf = await client.create(PDF, filename="a.pdf")
    call = item_pb2.FunctionCallItem(call_id="c", name="look", arguments_json="{}")
    output = item_pb2.ToolOutputItem(
        call_id="c",
        output=[
            item_pb2.ItemPart(text=item_pb2.TextPart(text="seen")),
            document(file_id=png.id),
        ],
    )
    first = await ResponseClient(client).create(
        user_message(image(url=ADDRESS, detail="high"), document(file_id=pdf.id)),
        item_pb2.Item(function_call=call),
        item_pb2.Item(function_call_output=output),
        user_message(image(file_id=png.id, detail="low")),
        model="fake",
        store=True,
    )
    asked, _, answered, looked = prompt(fake)
    expected = [
        chat_pb2.ContentPart(image=chat_pb2.Media(url=ADDRESS, detail="high")),
        chat_pb2.ContentPart(document=chat_pb2.Media(data=PDF, filename="a.pdf")),
    ]

    assert list(asked) == expected
    assert (answered[0].text, answered[1].image.data) == ("seen", PNG)
    assert looked[0].image == chat_pb2.Media(data=PNG, detail="low")

    await ResponseClient(client).create(
        "And?", model="fake", store=True, previous_response_id=first.id
    )

    assert prompt(fake)[0] == asked
    assert prompt(fake)[3] == looked


async def test_tokens_of_pictures_are_counted(both: tuple[RunningControl, FakeInference]) -> None:
    """The inference service gets the same parts as for an answer."""
    control, fake = both
    png = await control.client.create(PNG)
    item = user_message(image(file_id=png.id), image(url=ADDRESS))

    assert await ResponseClient(control.client).count(item, model="fake") == 2
    assert prompt(fake)[0][0].image.data == PNG


async def test_pictures_of_a_thread_reach_the_model(
    both: tuple[RunningControl, FakeInference],
) -> None:
    """From a file of purpose vision and from a data URL."""
    control, fake = both
    png = await control.client.create(PNG, purpose="FILE_PURPOSE_VISION")  # type: ignore[arg-type]
    parts = [image(file_id=png.id), image(url="data:image/png;base64,iVBORw0KGgo=")]
    thread = await ThreadClient(control.client).create_thread(make_new_message("", parts=parts))
    run = await run_thread(control.client, thread.id)

    assert run.state == run_pb2.Run.STATE_COMPLETED
    assert [part.image.data for part in prompt(fake)[0]] == [PNG, b"\x89PNG\r\n\x1a\n"]


async def test_a_file_that_is_gone_ends_the_turn_with_the_name_of_the_item(
    both: tuple[RunningControl, FakeInference],
) -> None:
    control, _ = both
    client = control.client
    file = await client.create(PNG)
    conversations = ConversationClient(client)
    conversation = await conversations.create(user_message(image(file_id=file.id)))
    (item,) = await conversations.items(conversation.id)
    threads = ThreadClient(client)
    thread = await threads.create_thread()
    message = await threads.add_message(thread.id, "", parts=[image(file_id=file.id)])
    await client.delete(file.id)

    with pytest.raises(InvalidField) as caught:
        await ResponseClient(client).create("?", conversation_id=conversation.id, model="fake")
    assert caught.value.field == f"{item.id}.content[0]"
    assert file.id in caught.value.message

    run = await run_thread(client, thread.id)
    assert run.state == run_pb2.Run.STATE_FAILED
    assert f"{message.id}.content[0]" in run.error.message
    assert file.id in run.error.message


async def test_a_refusal_of_the_model_names_the_part_of_the_input(
    both: tuple[RunningControl, FakeInference],
) -> None:
    """Not its place in the prompt, which has the instructions too."""
    control, fake = both
    fake.script.refusal = UnsupportedField(field="messages[2].parts[1].image")
    item = make_message("Look", url=ADDRESS)

    with pytest.raises(UnsupportedField) as caught:
        await ResponseClient(control.client).create(
            "Hi", item, instructions="Be brief", model="fake"
        )
    assert caught.value.field == "input[1].content[1]"


async def test_files_of_other_projects_are_not_found(
    both: tuple[RunningControl, FakeInference],
) -> None:
    """In messages and in outputs of functions; the error names the field."""
    control, _ = both
    foreign = await control.of_project("other").create(PNG)
    output = item_pb2.ToolOutputItem(call_id="c", output=[document(file_id=foreign.id)])
    for item, field in [
        (user_message(image(file_id=foreign.id)), "input[0].content[0].file_id"),
        (item_pb2.Item(function_call_output=output), "input[0].output[0].file_id"),
    ]:
        with pytest.raises(FileNotFound) as caught:
            await ResponseClient(control.client).create(item, model="fake")
        assert caught.value.field == field


async def test_lines_of_batches_may_have_pictures(
    both: tuple[RunningControl, FakeInference],
) -> None:
    """By file id; a file of another project fails its line alone."""
    control, fake = both
    png = await control.client.create(PNG)
    foreign = await control.of_project("other").create(PNG)

    def line(name: str, file_id: str) -> dict[str, Any]:
        part = {"type": "file", "file": {"file_id": file_id}}
        messages = [{"role": "user", "content": [part]}]
        return batch_line(name, "/v1/chat/completions", messages=messages)

    def response_line(name: str, file_id: str) -> dict[str, Any]:
        content = [{"type": "input_image", "file_id": file_id}]
        return batch_line(name, "/v1/responses", input=[{"role": "user", "content": content}])

    batches = BatchClient(control.client)
    chats = await batches.run([line("a", png.id), line("b", foreign.id)])
    answers = await batches.run(
        [response_line("c", png.id), response_line("d", foreign.id)], endpoint="/v1/responses"
    )

    assert [list(each.completed) for each in (chats, answers)] == [["a"], ["c"]]
    chat_error = chats.failed["b"]["response"]["body"]["error"]
    answer_error = answers.failed["d"]["response"]["body"]["error"]
    assert chat_error["param"] == "messages[0].content[0].file.file_id"
    assert answer_error["param"] == "input[0].content[0].file_id"
    sent = [call for call in fake.calls.requests if hasattr(call, "conversation")]
    assert [call.conversation.messages[0].parts[0].image.data for call in sent] == [PNG, PNG]
