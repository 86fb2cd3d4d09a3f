"""What the limits of requests of the control service refuse, and the field that errors name."""

from typing import Any

import pytest
from corral.control.v1 import (
    adapter_pb2,
    adapter_service_pb2,
    assistant_pb2,
    assistant_service_pb2,
    audit_service_pb2,
    batch_service_pb2,
    conversation_service_pb2,
    file_pb2,
    file_service_pb2,
    item_pb2,
    key_service_pb2,
    limit_service_pb2,
    message_pb2,
    response_pb2,
    response_service_pb2,
    run_pb2,
    run_service_pb2,
    thread_pb2,
    thread_service_pb2,
    tool_pb2,
    upload_service_pb2,
    usage_service_pb2,
    vector_store_file_service_pb2,
    vector_store_pb2,
    vector_store_service_pb2,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from svc_kit.errors import DomainError, InvalidField, MissingField, OutOfRange, TooLong
from svc_kit.rpc.field_limits import check_limits

LONG = {"key": "x" * 513}
STORES = "tool_resources.file_search.vector_stores[0]"
PART = item_pb2.ItemPart(text=item_pb2.TextPart(text="Hi"))
HEADER = file_pb2.FileHeader(filename="f")


def batch(**fields: Any) -> Message:
    return batch_service_pb2.CreateBatchRequest(**fields)


def run(**options: Any) -> Message:
    return run_service_pb2.CreateRunRequest(
        run=run_service_pb2.RunOptions(**{"assistant_id": "asst_1", **options})
    )


def message(**fields: Any) -> message_pb2.NewMessage:
    return message_pb2.NewMessage(**{"parts": [PART], **fields})


def thread(**fields: Any) -> Message:
    return thread_service_pb2.CreateThreadRequest(**fields)


def thread_and_run(**fields: Any) -> Message:
    options = run_service_pb2.RunOptions(assistant_id="asst_1")
    return run_service_pb2.CreateThreadAndRunRequest(run=options, **fields)


def response(**settings: Any) -> Message:
    new = response_pb2.NewResponse(settings=response_pb2.ResponseSettings(**settings))
    return response_service_pb2.CreateResponseRequest(new_response=new)


def assistant(**fields: Any) -> Message:
    return assistant_service_pb2.CreateAssistantRequest(assistant=assistant_pb2.Assistant(**fields))


def key(**fields: Any) -> Message:
    return key_service_pb2.CreateKeyRequest(**{"name": "k", **fields})


def share(**fields: Any) -> Message:
    asked = limit_service_pb2.LimitShareRequest(**{"limit_id": "l", **fields})
    return limit_service_pb2.LeaseLimitsRequest(holder="h", shares=[asked])


def usage(**fields: Any) -> Message:
    delta = usage_service_pb2.UsageDelta(**{"project": "p", "model": "m", **fields})
    return usage_service_pb2.ReportUsageRequest(report_id="r", deltas=[delta])


def audit(**fields: Any) -> Message:
    named = {"id": "i", "actor": "a", "project": "p", "method": "m"}
    event = audit_service_pb2.AuditEvent(**{**named, **fields})
    return audit_service_pb2.ReportAuditEventsRequest(events=[event])


def store(**fields: Any) -> Message:
    return vector_store_service_pb2.CreateVectorStoreRequest(**fields)


NEW_STORE = vector_store_service_pb2.CreateVectorStoreRequest(metadata=LONG)
REFUSED: dict[str, tuple[Message, type[DomainError], str]] = {
    "a short window": (
        batch(completion_window=Duration(seconds=3599)),
        OutOfRange,
        "completion_window",
    ),
    "a long window": (
        batch(completion_window=Duration(seconds=604801)),
        OutOfRange,
        "completion_window",
    ),
    "a short life": (batch(output_ttl=Duration(seconds=3599)), OutOfRange, "output_ttl"),
    "many pairs": (batch(metadata={str(n): "" for n in range(17)}), TooLong, "metadata"),
    "an empty key": (batch(metadata={"": "x"}), MissingField, "metadata"),
    "a long key": (batch(metadata={"k" * 65: "x"}), TooLong, "metadata"),
    "a long value": (batch(metadata={"k": "v" * 513}), TooLong, "metadata.k"),
    "a control character": (batch(metadata={"k": "\0"}), InvalidField, "metadata.k"),
    "a long request id": (batch(request_id="r" * 129), TooLong, "request_id"),
    "metadata of a thread": (
        thread(thread=thread_pb2.Thread(metadata=LONG)),
        TooLong,
        "metadata.key",
    ),
    "metadata of a message": (
        thread(messages=[message(metadata=LONG)]),
        TooLong,
        "messages[0].metadata.key",
    ),
    "many messages": (thread(messages=[message()] * 1001), TooLong, "messages"),
    "metadata of a new store": (
        thread(new_vector_stores=[NEW_STORE]),
        TooLong,
        f"{STORES}.metadata.key",
    ),
    "metadata of a thread with a run": (
        thread_and_run(thread=thread_pb2.Thread(metadata=LONG)),
        TooLong,
        "thread.metadata.key",
    ),
    "metadata of a message with a run": (
        thread_and_run(messages=[message(metadata=LONG)]),
        TooLong,
        "thread.messages[0].metadata.key",
    ),
    "metadata of a new store with a run": (
        thread_and_run(new_vector_stores=[NEW_STORE]),
        TooLong,
        f"thread.{STORES}.metadata.key",
    ),
    "no content": (thread(messages=[message(parts=[])]), MissingField, "messages[0].content"),
    "no assistant": (run(assistant_id=""), MissingField, "assistant_id"),
    "many tools of a run": (
        run(tools=run_service_pb2.RunTools(tools=[tool_pb2.Tool()] * 21)),
        TooLong,
        "tools",
    ),
    "few tokens of a run": (run(max_prompt_tokens=255), OutOfRange, "max_prompt_tokens"),
    "no last messages": (
        run(truncation=run_pb2.RunTruncation(last_messages=0)),
        OutOfRange,
        "truncation_strategy.last_messages",
    ),
    "a temperature of a run": (
        run(options={"sampling": {"temperature": 101}}),
        OutOfRange,
        "options.temperature",
    ),
    "a long output": (
        run_service_pb2.SubmitToolOutputsRequest(
            outputs=[run_service_pb2.ToolOutput(output="x" * 512_001)]
        ),
        TooLong,
        "tool_outputs[0].output",
    ),
    "a long name of an assistant": (assistant(name="n" * 257), TooLong, "name"),
    "many tools of an assistant": (assistant(tools=[tool_pb2.Tool()] * 129), TooLong, "tools"),
    "long instructions": (response(instructions="x" * 1_048_577), TooLong, "instructions"),
    "a small threshold": (response(compact_threshold=999), OutOfRange, "compact_threshold"),
    "a long cache key": (response(prompt_cache_key="é" * 129), TooLong, "prompt_cache_key"),
    "a line break in a user": (response(user="a\nb"), InvalidField, "user"),
    "no name of a file": (
        file_service_pb2.CreateFileRequest(header=file_pb2.FileHeader()),
        MissingField,
        "filename",
    ),
    "a short life of a file": (
        file_service_pb2.CreateFileRequest(
            header=file_pb2.FileHeader(filename="f", ttl=Duration(seconds=1))
        ),
        OutOfRange,
        "ttl",
    ),
    "no parts": (upload_service_pb2.CompleteUploadRequest(), MissingField, "part_ids"),
    "a large scale": (
        adapter_service_pb2.CreateAdapterRequest(
            header=adapter_pb2.AdapterHeader(default_scale=11)
        ),
        OutOfRange,
        "default_scale",
    ),
    "no items": (
        conversation_service_pb2.CreateConversationItemsRequest(),
        MissingField,
        "items",
    ),
    "many items": (
        conversation_service_pb2.CreateConversationRequest(items=[item_pb2.Item()] * 21),
        TooLong,
        "items",
    ),
    "an empty model of a key": (key(models=["a", ""]), MissingField, "models[1]"),
    "many networks": (key(networks=["::1"] * 101), TooLong, "networks"),
    "a long overlap": (
        key_service_pb2.RotateKeyRequest(overlap=Duration(seconds=7_776_001)),
        OutOfRange,
        "overlap",
    ),
    "no limit": (share(limit_id=""), MissingField, "shares[0].limit_id"),
    "a negative share": (share(held=-1), OutOfRange, "shares[0].held"),
    "no model of usage": (usage(model=""), MissingField, "deltas[0].model"),
    "negative usage": (
        usage(counts=usage_service_pb2.UsageCounts(requests=-1)),
        OutOfRange,
        "deltas[0].counts.requests",
    ),
    "no method": (audit(method=""), MissingField, "events[0].method"),
    "a long request": (audit(request="x" * 16_385), TooLong, "events[0].request"),
    "no days": (store(expire_after_days=0), OutOfRange, "expire_after_days"),
    "metadata of a store": (
        vector_store_service_pb2.UpdateVectorStoreRequest(
            metadata=vector_store_service_pb2.VectorStoreMetadata(
                pairs={str(n): "" for n in range(17)}
            )
        ),
        TooLong,
        "metadata",
    ),
    "a value of a store": (
        vector_store_service_pb2.UpdateVectorStoreRequest(
            metadata=vector_store_service_pb2.VectorStoreMetadata(pairs=LONG)
        ),
        TooLong,
        "metadata.key",
    ),
    "a negative page": (
        limit_service_pb2.ListLimitsRequest(page_size=-1),
        OutOfRange,
        "page_size",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_beyond_a_limit_is_refused(case: str) -> None:
    """The error names the field as callers of the HTTP APIs know it, or by its path."""
    request, error, field = REFUSED[case]
    with pytest.raises(error) as refused:
        check_limits(request)

    assert refused.value.field == field


@pytest.mark.parametrize(
    "request_",
    [
        thread(),
        thread(thread=thread_pb2.Thread(metadata={"k": ""}), messages=[message()] * 1000),
        run(max_prompt_tokens=256, tools=run_service_pb2.RunTools(tools=[tool_pb2.Tool()] * 20)),
        batch(completion_window=Duration(seconds=604800), request_id="r" * 128),
        response(compact_threshold=1000, prompt_cache_key="é" * 128),
        share(returned=-1),
        file_service_pb2.CreateFileRequest(chunk=b"x"),
        file_service_pb2.CreateFileRequest(header=HEADER),
        vector_store_service_pb2.UpdateVectorStoreRequest(expire_after_days=0),
        vector_store_file_service_pb2.CreateVectorStoreFileRequest(
            attributes={"k": vector_store_pb2.AttributeValue(number=1)}
        ),
    ],
    ids=lambda request: request.DESCRIPTOR.name + str(request.ByteSize()),
)
def test_a_request_at_its_limits_is_accepted(request_: Message) -> None:
    """And one whose fields are unset."""
    check_limits(request_)
