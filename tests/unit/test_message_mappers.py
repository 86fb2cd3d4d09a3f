"""Every mapping between a dataclass and a proto keeps the values of all fields, both ways."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from importlib import import_module
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from corral.control.v1.item_pb2 import FileCitation
from corral.inference.v1 import generation_pb2 as pb
from google.protobuf.message import Message

from control_svc.assistants.message_model import NewMessage, ThreadMessage
from control_svc.assistants.model import Assistant, AssistantSettings, NewThread
from control_svc.files.model import UploadWithFile
from control_svc.inference.generation_options import OPTIONS, GenerationOptions
from control_svc.items.model import Text
from control_svc.runs.model import NewRun, Run
from control_svc.runs.steps import RunStep
from control_svc.tools.model import McpTool
from control_svc.tools.proto import TOOL
from control_svc.vector_stores.model import FileState
from svc_kit.rpc.message_mapper import MessageMapper, OneofMapper
from tests.architecture.test_house_rules import ROOT

VALUES: Final[dict[Any, Any]] = {
    str: "text",
    int: 7,
    float: 0.5,
    bytes: b"raw",
    datetime: datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    timedelta: timedelta(hours=1, microseconds=2),
    GenerationOptions: OPTIONS.from_message(
        pb.GenerationOptions(output={"top_logprobs": 1}, cache={"affinity": "text"})
    ),
}
MOST_ALTERNATIVES: Final = 12
MAX_DEPTH: Final = 12


WRITTEN_ONLY: Final = (Run, RunStep, ThreadMessage, UploadWithFile)
"""Types with fields that are not in their message."""
SERVER_SET: Final[dict[type, set[str]]] = {Text: {"annotations", "logprobs"}}
UNSET: Final[dict[type, dict[type, set[str]]]] = {
    NewMessage: SERVER_SET,
    NewRun: SERVER_SET,
    NewThread: SERVER_SET,
}
"""Fields that a request for the type must not set, or that are dropped."""
HINTS: Final[dict[type, dict[str, type]]] = {Assistant: {"settings": AssistantSettings}}
"""Types of fields whose class is generic."""
Root = MessageMapper[Any, Any]


def collect(
    found: Iterable[object], path: str, into: dict[int, tuple[str, MessageMapper[Any, Any]]]
) -> None:
    for mapping in found:
        if isinstance(mapping, MessageMapper) and id(mapping) not in into:
            name = f"{path}.{mapping.domain.__name__}-{mapping.descriptor.name}"
            into[id(mapping)] = name, mapping
            collect([*mapping.uses, *mapping.parts], path, into)
        elif isinstance(mapping, OneofMapper):
            collect(mapping.uses, path, into)


MODULES: Final = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for service in ("control_svc", "inference_svc")
    for path in sorted((ROOT / service).rglob("*.py"))
    if "message_mapper" in path.read_text(encoding="utf-8")
]
MAPPINGS: Final[dict[int, tuple[str, MessageMapper[Any, Any]]]] = {}
for module in MODULES:
    collect(vars(import_module(module)).values(), module, MAPPINGS)
LEFT_OUT: Final[dict[Any, set[str]]] = defaultdict(set)
for _, each in MAPPINGS.values():
    LEFT_OUT[each.domain] |= each.only_domain


def example(kind: Any, default: object, variant: int, root: Root, depth: int) -> Any:
    """A value of a type that is not the default. `variant` selects an alternative of unions."""
    origin, parts = get_origin(kind), [each for each in get_args(kind) if each is not NoneType]
    if origin in (Union, UnionType):
        return example(parts[variant % len(parts)], default, variant, root, depth)
    if origin is Literal:
        return parts[-1]
    if origin in (tuple, Sequence, frozenset):
        few = depth > MAX_DEPTH
        return () if few else (example(parts[0], None, variant, root, depth),)
    if origin is Mapping:
        return {"key": example(parts[1], None, variant, root, depth)}
    if kind is bool:
        return default is not True
    if kind in VALUES:
        return VALUES[kind]
    if issubclass(kind, Enum):
        return next(each for each in kind if each not in (default, FileState.DELETED))
    return build(kind, variant, root, depth + 1)


def build(kind: Any, variant: int, root: Root, depth: int = 0) -> Any:
    """An object without default values, except in the fields that mappings leave out."""
    hints, parameters = get_type_hints(kind) | HINTS.get(kind, {}), signature(kind).parameters
    names = list(parameters)
    unset = LEFT_OUT[kind] if depth else root.only_domain
    unset = unset | UNSET.get(root.domain, {}).get(kind, set())
    return kind(
        **{
            name: example(hints[name], parameters[name].default, variant, root, depth)
            for name in names
            if name not in unset or parameters[name].default is Parameter.empty
        }
    )


def unset_fields(mapping: MessageMapper[Any, Any], message: Message) -> set[str]:
    """The mapped fields that a message lacks; one of each oneof suffices."""
    missing = mapping.targets - {field.name for field, _ in message.ListFields()}
    fields = [mapping.descriptor.fields_by_name[name] for name in missing]
    return {
        field.name
        for field in fields
        if (field.has_presence or field.type != field.TYPE_BOOL)  # false cannot be seen
        and (field.containing_oneof is None or not message.WhichOneof(field.containing_oneof.name))
    }


@pytest.mark.parametrize(
    "mapping", [each for _, each in MAPPINGS.values()], ids=[name for name, _ in MAPPINGS.values()]
)
def test_every_field_is_converted_both_ways(mapping: MessageMapper[Any, Any]) -> None:
    """With values that are not defaults, for each alternative of unions."""
    for variant in range(1 if mapping.domain is ThreadMessage else MOST_ALTERNATIVES):
        value = build(mapping.domain, variant, mapping)
        message = mapping.to_message(value)
        assert unset_fields(mapping, message) == set()
        if mapping.domain not in WRITTEN_ONLY:
            required = {
                name
                for name, parameter in signature(mapping.domain).parameters.items()
                if parameter.default is Parameter.empty
            }
            extra = {name: getattr(value, name) for name in mapping.only_domain & required}
            assert mapping.from_message(message, **extra) == value


@dataclass(frozen=True)
class Shortened:
    """A citation without its file and with one field more."""

    filename: str
    marker: str
    start: int
    end: int
    note: str = ""


def test_fields_without_a_partner_are_refused_when_a_mapping_is_declared() -> None:
    """On both sides, unless they are listed."""
    with pytest.raises(TypeError, match="differ in: file_id, note"):
        MessageMapper(Shortened, FileCitation)
    MessageMapper(Shortened, FileCitation, only_domain=["note"], only_message=["file_id"])


def test_fields_that_are_listed_and_do_not_exist_are_refused() -> None:
    domain, message = ["note", "old"], ["file_id", "older"]
    with pytest.raises(TypeError, match="differ in: old, older"):
        MessageMapper(Shortened, FileCitation, only_domain=domain, only_message=message)


@pytest.mark.parametrize("allowed", [None, (), ("look",)])
def test_no_allowed_tools_differ_from_all(allowed: tuple[str, ...] | None) -> None:
    """Of an MCP server; a repeated field alone cannot express it."""
    tool = McpTool(server_label="s", allowed_tools=allowed)

    assert TOOL.decode(TOOL.encode(tool), "tools[0]") == tool
