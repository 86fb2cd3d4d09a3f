from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    SCOPE_PUBLIC: _ClassVar[Scope]
    SCOPE_KNOWN: _ClassVar[Scope]
    SCOPE_GENERATE: _ClassVar[Scope]
    SCOPE_FILES: _ClassVar[Scope]
    SCOPE_FILES_READ: _ClassVar[Scope]
    SCOPE_READ: _ClassVar[Scope]
    SCOPE_INFERENCE: _ClassVar[Scope]
    SCOPE_ADMIN_READ: _ClassVar[Scope]
    SCOPE_ADMIN: _ClassVar[Scope]
    SCOPE_MODELS_READ: _ClassVar[Scope]
    SCOPE_REQUESTS_READ: _ClassVar[Scope]
    SCOPE_REQUESTS: _ClassVar[Scope]
    SCOPE_SERVICE: _ClassVar[Scope]
SCOPE_UNSPECIFIED: Scope
SCOPE_PUBLIC: Scope
SCOPE_KNOWN: Scope
SCOPE_GENERATE: Scope
SCOPE_FILES: Scope
SCOPE_FILES_READ: Scope
SCOPE_READ: Scope
SCOPE_INFERENCE: Scope
SCOPE_ADMIN_READ: Scope
SCOPE_ADMIN: Scope
SCOPE_MODELS_READ: Scope
SCOPE_REQUESTS_READ: Scope
SCOPE_REQUESTS: Scope
SCOPE_SERVICE: Scope
SCOPE_FIELD_NUMBER: _ClassVar[int]
scope: _descriptor.FieldDescriptor
LONG_LIVED_FIELD_NUMBER: _ClassVar[int]
long_lived: _descriptor.FieldDescriptor
