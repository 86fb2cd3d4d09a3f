import datetime

from corral.control.v1 import item_pb2 as _item_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachmentTool(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTACHMENT_TOOL_UNSPECIFIED: _ClassVar[AttachmentTool]
    ATTACHMENT_TOOL_FILE_SEARCH: _ClassVar[AttachmentTool]
ATTACHMENT_TOOL_UNSPECIFIED: AttachmentTool
ATTACHMENT_TOOL_FILE_SEARCH: AttachmentTool

class Message(_message.Message):
    __slots__ = ("id", "thread_id", "state", "create_time", "completed_time", "incomplete_time", "incomplete_reason", "role", "parts", "attachments", "metadata", "assistant_id", "run_id")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Message.State]
        STATE_IN_PROGRESS: _ClassVar[Message.State]
        STATE_COMPLETED: _ClassVar[Message.State]
        STATE_INCOMPLETE: _ClassVar[Message.State]
    STATE_UNSPECIFIED: Message.State
    STATE_IN_PROGRESS: Message.State
    STATE_COMPLETED: Message.State
    STATE_INCOMPLETE: Message.State
    class IncompleteReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        INCOMPLETE_REASON_UNSPECIFIED: _ClassVar[Message.IncompleteReason]
        INCOMPLETE_REASON_CONTENT_FILTER: _ClassVar[Message.IncompleteReason]
        INCOMPLETE_REASON_MAX_TOKENS: _ClassVar[Message.IncompleteReason]
        INCOMPLETE_REASON_RUN_CANCELLED: _ClassVar[Message.IncompleteReason]
        INCOMPLETE_REASON_RUN_EXPIRED: _ClassVar[Message.IncompleteReason]
        INCOMPLETE_REASON_RUN_FAILED: _ClassVar[Message.IncompleteReason]
    INCOMPLETE_REASON_UNSPECIFIED: Message.IncompleteReason
    INCOMPLETE_REASON_CONTENT_FILTER: Message.IncompleteReason
    INCOMPLETE_REASON_MAX_TOKENS: Message.IncompleteReason
    INCOMPLETE_REASON_RUN_CANCELLED: Message.IncompleteReason
    INCOMPLETE_REASON_RUN_EXPIRED: Message.IncompleteReason
    INCOMPLETE_REASON_RUN_FAILED: Message.IncompleteReason
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_TIME_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_TIME_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_REASON_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ASSISTANT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread_id: str
    state: Message.State
    create_time: _timestamp_pb2.Timestamp
    completed_time: _timestamp_pb2.Timestamp
    incomplete_time: _timestamp_pb2.Timestamp
    incomplete_reason: Message.IncompleteReason
    role: _item_pb2.ItemRole
    parts: _containers.RepeatedCompositeFieldContainer[_item_pb2.ItemPart]
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    metadata: _containers.ScalarMap[str, str]
    assistant_id: str
    run_id: str
    def __init__(self, id: _Optional[str] = ..., thread_id: _Optional[str] = ..., state: _Optional[_Union[Message.State, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completed_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., incomplete_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., incomplete_reason: _Optional[_Union[Message.IncompleteReason, str]] = ..., role: _Optional[_Union[_item_pb2.ItemRole, str]] = ..., parts: _Optional[_Iterable[_Union[_item_pb2.ItemPart, _Mapping]]] = ..., attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., assistant_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class NewMessage(_message.Message):
    __slots__ = ("role", "parts", "attachments", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    role: _item_pb2.ItemRole
    parts: _containers.RepeatedCompositeFieldContainer[_item_pb2.ItemPart]
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, role: _Optional[_Union[_item_pb2.ItemRole, str]] = ..., parts: _Optional[_Iterable[_Union[_item_pb2.ItemPart, _Mapping]]] = ..., attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Attachment(_message.Message):
    __slots__ = ("file_id", "tools")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    tools: _containers.RepeatedScalarFieldContainer[AttachmentTool]
    def __init__(self, file_id: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[AttachmentTool, str]]] = ...) -> None: ...
