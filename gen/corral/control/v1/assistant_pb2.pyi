import datetime

from corral.control.v1 import tool_pb2 as _tool_pb2
from corral.inference.v1 import generation_pb2 as _generation_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Assistant(_message.Message):
    __slots__ = ("id", "create_time", "etag", "model", "name", "description", "instructions", "tools", "tool_resources", "metadata", "options", "response_format", "reasoning_effort")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    id: str
    create_time: _timestamp_pb2.Timestamp
    etag: str
    model: str
    name: str
    description: str
    instructions: str
    tools: _containers.RepeatedCompositeFieldContainer[_tool_pb2.Tool]
    tool_resources: _tool_pb2.ToolResources
    metadata: _containers.ScalarMap[str, str]
    options: _generation_pb2.GenerationOptions
    response_format: _tool_pb2.AnswerFormat
    reasoning_effort: str
    def __init__(self, id: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., etag: _Optional[str] = ..., model: _Optional[str] = ..., name: _Optional[str] = ..., description: _Optional[str] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[_tool_pb2.Tool, _Mapping]]] = ..., tool_resources: _Optional[_Union[_tool_pb2.ToolResources, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., options: _Optional[_Union[_generation_pb2.GenerationOptions, _Mapping]] = ..., response_format: _Optional[_Union[_tool_pb2.AnswerFormat, _Mapping]] = ..., reasoning_effort: _Optional[str] = ...) -> None: ...
