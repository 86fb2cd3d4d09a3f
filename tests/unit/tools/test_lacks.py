"""What `make check` prints of RPCs and fields that lack something."""

from corral.control.v1 import thread_pb2, thread_service_pb2
from typing_extensions import TypedDict

from dialects.shared.wire import Written, nested_writer
from tools.lacks import uncalled_rpcs, unwritten_fields


class Shape(TypedDict):
    id: str
    metadata: dict[str, str]


def test_fields_without_a_key_are_named_with_the_module_of_their_object() -> None:
    """But for those that have a reason, such as the active run of a thread."""
    written = Written(thread_pb2.Thread, nested_writer(thread_pb2.Thread.DESCRIPTOR, Shape))

    place = f"has no key in Shape of {__name__}"
    assert [*unwritten_fields({Shape: written})] == [
        f"the field {name} of corral.control.v1.Thread {place}"
        for name in ("create_time", "etag", "tool_resources")
    ]


def test_rpcs_whose_requests_nobody_makes_are_named() -> None:
    """With the folders of routes and commands."""
    (service,) = thread_service_pb2.DESCRIPTOR.services_by_name.values()
    others = " ".join(each.input_type.name for each in service.methods[1:])

    (lacking,) = uncalled_rpcs([service], others)

    assert lacking.startswith(f"{service.methods[0].full_name} has no route in gateway/routes")
