"""Responses, items and events: round trips between protos and JSON."""

import orjson
import pytest
from corral.control.v1 import item_pb2, response_event_pb2, response_pb2, tool_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.items import model as item_model
from control_svc.items.proto import ITEM, input_item
from dialects.openai.responses.choices import tool_choice_object, tool_choice_to_proto
from dialects.openai.responses.events import EVENT_TYPES, event_frame, event_object
from dialects.openai.responses.input_items import item_to_proto
from dialects.openai.responses.objects import response_object
from dialects.openai.responses.output_items import item_object
from dialects.openai.responses.tool_objects import tool_object
from dialects.openai.responses.tools import tools_to_proto
from tests.support.examples import examples
from tests.support.fake_responses import complete, turn_events
from tests.support.items import contents_of_kind, items_with
from tests.support.open_responses import check_event, check_response, check_stream

_ID = st.text(min_size=1)
_ADDRESS = _ID.map("https://host/{}".format)
_TEXTS = st.builds(item_model.Text, text=st.text())
_INPUT_PARTS = st.one_of(
    _TEXTS,
    st.builds(item_model.Image, url=_ADDRESS, detail=st.sampled_from(["auto", "low", "high"])),
    st.builds(item_model.Image, file_id=_ID, detail=st.just("auto")),
    st.builds(item_model.FileInput, file_id=_ID, filename=st.text()),
    st.builds(item_model.FileInput, data_url=_ID),
    st.builds(item_model.FileInput, data_url=_ADDRESS),
)
_OUTPUT_PARTS = st.one_of(_TEXTS, st.builds(item_model.Refusal, refusal=st.text()))
_CONTENTS: st.SearchStrategy[item_model.Content] = st.one_of(
    st.builds(
        item_model.Message,
        role=st.sampled_from(
            [item_model.Role.USER, item_model.Role.SYSTEM, item_model.Role.DEVELOPER]
        ),
        content=st.lists(_INPUT_PARTS, max_size=3).map(tuple),
    ),
    st.builds(
        item_model.Message,
        role=st.just(item_model.Role.ASSISTANT),
        content=st.lists(_OUTPUT_PARTS, max_size=3).map(tuple),
    ),
    st.builds(item_model.FunctionCall, call_id=_ID, name=_ID, arguments=st.text()),
    st.builds(item_model.Reasoning, text=_ID, sealed=st.text()),
)


@settings(max_examples=examples(100))
@given(item=items_with(_CONTENTS))
def test_items_are_the_same_after_a_round_trip(item: object) -> None:
    """Clients send items back as received."""
    proto = ITEM.to_message(item)  # type: ignore[arg-type]

    written = orjson.loads(orjson.dumps(item_object(proto)))
    parsed = item_to_proto(written, "input[0]")

    assert input_item(parsed, "x").content == input_item(proto, "x").content


@pytest.mark.parametrize("kind", item_model.ITEM_PREFIXES)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_items_of_every_type_are_converted(
    kind: type[item_model.Content], data: st.DataObject
) -> None:
    """Including invalid JSON of third parties."""
    shown = item_object(ITEM.to_message(data.draw(items_with(contents_of_kind(kind)))))

    orjson.dumps(shown)
    assert shown["type"] == kind.kind


@settings(max_examples=examples(50))
@given(
    name=st.text("abc_", min_size=1, max_size=8),
    description=st.none() | st.text(min_size=1),
    strict=st.none() | st.booleans(),
    parameters=st.none() | st.dictionaries(st.text(), st.integers(0, 9), max_size=2),
    mode=st.sampled_from(["auto", "none", "required"]),
)
def test_tools_and_choices_are_the_same_after_a_round_trip(
    name: str,
    description: str | None,
    strict: bool | None,
    parameters: dict[str, int] | None,
    mode: str,
) -> None:
    """With every key that strict clients require."""
    tool = {
        "type": "function",
        "name": name,
        "description": description,
        "strict": strict,
        "parameters": parameters,
    }
    tools = tools_to_proto([tool])
    selection = tool_choice_to_proto(mode, tools) or tool_pb2.ToolSelection()

    assert [tool_object(each) for each in tools] == [tool]
    assert tool_choice_object(selection, tools) == mode


@settings(max_examples=examples(50))
@given(text=st.text(max_size=20), state=st.sampled_from(response_pb2.Response.State.values()[1:]))
def test_a_turn_is_valid_open_responses(text: str, state: int) -> None:
    """Object and events, in every state."""
    response = complete(response_pb2.Response(id="resp_1"), text)
    events = [event_object(event) for event in turn_events(response)]

    check_stream(events)
    response.state = response_pb2.Response.State.Name(state)  # type: ignore[assignment]
    check_response(response_object(response))


@pytest.mark.parametrize("field", EVENT_TYPES)
def test_every_event_has_a_type_and_a_frame(field: str) -> None:
    """Including events that are not used yet."""
    event = response_event_pb2.ResponseEvent(sequence_number=7)
    getattr(event, field).SetInParent()
    if EVENT_TYPES[field].count(".") == 1:
        getattr(event, field).state = response_pb2.Response.STATE_COMPLETED
    elif field.startswith("output_item"):
        getattr(event, field).item.id = "msg_1"
        getattr(event, field).item.message.role = item_pb2.ITEM_ROLE_ASSISTANT
    shown = event_object(event)
    check_event(shown)

    frame = event_frame(shown)

    assert frame.startswith(b"id: 7\nevent: response.")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 4
