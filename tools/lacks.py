"""Prints what RPCs and fields of the protos still lack, and where it belongs: `make check` runs it.

A field without a partner in its dataclass or body, and a method without a scope, are errors of
`svc_kit/rpc/message_mapper.py`, `dialects/shared/fields.py` and `svc_kit/auth/scopes.py`.
"""

import importlib
import inspect
import pkgutil
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

import dialects
from control_svc.base.resource import Served, build_service
from dialects.shared.wire import WRITTEN, Written
from tools.code_size import modules
from tools.rpc_methods import list_services

CONTROL: Final = "corral.control."
CALLERS: Final = ("gateway", "dialects", "corral_cli", "svc_kit", "inference_svc")
"""The packages that call the control service."""
UNCALLED: Final = {
    **dict.fromkeys(("GetJob", "GetKey", "GetProject"), "commands have them in lists"),
    "GetUpload": "OpenAI's API has no such route",
    "WatchVectorStore": "clients of OpenAI's API poll",
}
"""RPCs of the control service that only gRPC clients call, with the reason."""
UNWRITTEN: Final[Mapping[str, Mapping[str, str]]] = {
    "Adapter": {"size_bytes": "its size in memory concerns engines"},
    "AnswerFormat": {"kind": "it decides which object is written"},
    "Batch": {"output_ttl": "OpenAI's object has none"},
    "CompactResponseResponse": {"rate_limits": "they are headers"},
    "Conversation": {"writing_response_id": "OpenAI's object has none"},
    "Item": dict.fromkeys(("create_time", "status"), "in some kinds of items"),
    "Response": {"expire_time": "OpenAI's object has none"},
    "Run": dict.fromkeys(("end_time", "usage"), "in runs that have ended"),
    "RunStep": {"end_time": "in steps that have ended"},
    "StepCall": {"file_search": "its objects are written by hand"},
    "Thread": {"active_run_id": "OpenAI's object has none"},
    "Upload": {"mime_type": "OpenAI's object has none"},
    "UploadPart": {"size_bytes": "OpenAI's object has none"},
    "VectorStore": {"embedding_model": "OpenAI's object has none"},
    "VectorStoreFile": {"batch_id": "OpenAI's object has none"},
}
"""Fields of messages of the control service that no object of theirs has, with the reason."""


class _Recorder:
    """Reads as a message does, and records the fields."""

    def __init__(self, message: Message) -> None:
        self._message, self.read = message, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._message, name)

    def HasField(self, name: str) -> bool:
        self.read.add(name)
        return self._message.HasField(name)

    def WhichOneof(self, name: str) -> str | None:
        self.read |= {each.name for each in self._message.DESCRIPTOR.oneofs_by_name[name].fields}
        chosen: str | None = self._message.WhichOneof(name)
        return chosen


def unwritten_fields(written: Mapping[Any, Written]) -> Iterator[str]:
    """The fields that no object of their message has."""
    left: dict[Any, set[str]] = {}
    shapes: dict[Any, list[str]] = defaultdict(list)
    for shape, (message, write) in written.items():
        if not message.DESCRIPTOR.full_name.startswith(CONTROL):
            continue
        recorder = _Recorder(message())
        write(recorder)
        left.setdefault(message.DESCRIPTOR, {*message.DESCRIPTOR.fields_by_name})
        left[message.DESCRIPTOR] -= recorder.read
        shapes[message.DESCRIPTOR].append(f"{shape.__name__} of {shape.__module__}")
    for descriptor, names in left.items():
        for name in sorted(names - UNWRITTEN.get(descriptor.name, {}).keys()):
            places = " or ".join(shapes[descriptor])
            yield f"the field {name} of {descriptor.full_name} has no key in {places}"


def uncalled_rpcs(services: Iterable[ServiceDescriptor], sources: str) -> Iterator[str]:
    """The RPCs whose requests are not in the sources of callers."""
    known = {*re.findall(r"\w+Request\b", sources)}
    for method in (method for service in services for method in service.methods):
        if method.input_type.name not in known and method.name not in UNCALLED:
            yield f"{method.full_name} has no route in gateway/routes and no command in corral_cli"


def unserved_rpcs(services: Iterable[ServiceDescriptor]) -> Iterator[str]:
    """The services and RPCs without a class or method of `control_svc`."""
    served = {
        each.service.full_name: each for each in _subclasses(Served) if hasattr(each, "service")
    }
    for service in services:
        if service.full_name not in served:
            yield f"{service.full_name} has no class in control_svc"
            continue
        cls = served[service.full_name]
        try:
            build_service(object.__new__(cls))
        except TypeError as error:
            yield f"{error}: {inspect.getsourcefile(cls)}"


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def main() -> int:
    """Print what is missing. Returns the exit code."""
    modules_of_dialects = pkgutil.walk_packages(dialects.__path__, "dialects.")
    for name in ("control_svc.slices", *(module.name for module in modules_of_dialects)):
        importlib.import_module(name)
    services = list_services(CONTROL)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in modules(*CALLERS))
    rpcs = *unserved_rpcs(services), *uncalled_rpcs(services, sources)
    lacking = "\n".join([*rpcs, *unwritten_fields(WRITTEN)])
    print(lacking, end="\n" if lacking else "", file=sys.stderr)
    return bool(lacking)


if __name__ == "__main__":
    sys.exit(main())
