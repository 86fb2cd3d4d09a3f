"""Field masks: which fields an update replaces."""

from corral.control.v1.assistant_pb2 import Assistant
from corral.control.v1.tool_pb2 import FunctionTool, Tool
from google.protobuf.field_mask_pb2 import FieldMask

from control_svc.base.proto import apply_mask


def function(name: str) -> Tool:
    return Tool(function=FunctionTool(name=name))


def test_only_the_named_fields_change() -> None:
    """Lists are replaced, not appended to."""
    current = Assistant(name="a", model="m", tools=[function("old")])
    changes = Assistant(name="b", tools=[function("new")])

    changed = apply_mask(current, changes, FieldMask(paths=["tools"]))

    assert changed == Assistant(name="a", model="m", tools=[function("new")])


def test_a_path_into_an_unset_message_clears_its_field_only() -> None:
    """The other fields of the message stay, and the arguments do not change."""
    current, changes = Assistant(name="a"), Assistant()
    current.options.sampling.top_k = 5
    current.options.stopping.max_tokens = 7
    before = Assistant()
    before.CopyFrom(current)

    changed = apply_mask(current, changes, FieldMask(paths=["options.sampling"]))

    assert not changed.options.HasField("sampling")
    assert changed.options.stopping.max_tokens == 7
    assert current == before
    assert changes == Assistant()
