import datetime

from corral.control.v1 import item_pb2 as _item_pb2
from corral.control.v1 import tool_pb2 as _tool_pb2
from corral.inference.v1 import generation_pb2 as _generation_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResponseInclude(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESPONSE_INCLUDE_UNSPECIFIED: _ClassVar[ResponseInclude]
    RESPONSE_INCLUDE_LOGPROBS: _ClassVar[ResponseInclude]
    RESPONSE_INCLUDE_FILE_SEARCH_RESULTS: _ClassVar[ResponseInclude]
    RESPONSE_INCLUDE_SEALED_REASONING: _ClassVar[ResponseInclude]
    RESPONSE_INCLUDE_INPUT_IMAGE_URLS: _ClassVar[ResponseInclude]
RESPONSE_INCLUDE_UNSPECIFIED: ResponseInclude
RESPONSE_INCLUDE_LOGPROBS: ResponseInclude
RESPONSE_INCLUDE_FILE_SEARCH_RESULTS: ResponseInclude
RESPONSE_INCLUDE_SEALED_REASONING: ResponseInclude
RESPONSE_INCLUDE_INPUT_IMAGE_URLS: ResponseInclude

class ResponseReasoning(_message.Message):
    __slots__ = ("effort", "summary")
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    effort: str
    summary: str
    def __init__(self, effort: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...

class ResponseSettings(_message.Message):
    __slots__ = ("model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "format", "verbosity", "reasoning", "truncation", "max_output_tokens", "max_tool_calls", "compact_threshold", "options", "include", "background", "store", "metadata", "prompt_cache_key", "safety_identifier", "service_tier", "user")
    class Truncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TRUNCATION_UNSPECIFIED: _ClassVar[ResponseSettings.Truncation]
        TRUNCATION_DISABLED: _ClassVar[ResponseSettings.Truncation]
        TRUNCATION_AUTO: _ClassVar[ResponseSettings.Truncation]
    TRUNCATION_UNSPECIFIED: ResponseSettings.Truncation
    TRUNCATION_DISABLED: ResponseSettings.Truncation
    TRUNCATION_AUTO: ResponseSettings.Truncation
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERBOSITY_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    COMPACT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    SAFETY_IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    model: str
    instructions: str
    tools: _containers.RepeatedCompositeFieldContainer[_tool_pb2.Tool]
    tool_choice: _tool_pb2.ToolSelection
    parallel_tool_calls: bool
    format: _tool_pb2.AnswerFormat
    verbosity: str
    reasoning: ResponseReasoning
    truncation: ResponseSettings.Truncation
    max_output_tokens: int
    max_tool_calls: int
    compact_threshold: int
    options: _generation_pb2.GenerationOptions
    include: _containers.RepeatedScalarFieldContainer[ResponseInclude]
    background: bool
    store: bool
    metadata: _containers.ScalarMap[str, str]
    prompt_cache_key: str
    safety_identifier: str
    service_tier: str
    user: str
    def __init__(self, model: _Optional[str] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[_tool_pb2.Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[_tool_pb2.ToolSelection, _Mapping]] = ..., parallel_tool_calls: _Optional[bool] = ..., format: _Optional[_Union[_tool_pb2.AnswerFormat, _Mapping]] = ..., verbosity: _Optional[str] = ..., reasoning: _Optional[_Union[ResponseReasoning, _Mapping]] = ..., truncation: _Optional[_Union[ResponseSettings.Truncation, str]] = ..., max_output_tokens: _Optional[int] = ..., max_tool_calls: _Optional[int] = ..., compact_threshold: _Optional[int] = ..., options: _Optional[_Union[_generation_pb2.GenerationOptions, _Mapping]] = ..., include: _Optional[_Iterable[_Union[ResponseInclude, str]]] = ..., background: _Optional[bool] = ..., store: _Optional[bool] = ..., metadata: _Optional[_Mapping[str, str]] = ..., prompt_cache_key: _Optional[str] = ..., safety_identifier: _Optional[str] = ..., service_tier: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class NewResponse(_message.Message):
    __slots__ = ("settings", "input", "previous_response_id", "conversation_id")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    settings: ResponseSettings
    input: _containers.RepeatedCompositeFieldContainer[_item_pb2.Item]
    previous_response_id: str
    conversation_id: str
    def __init__(self, settings: _Optional[_Union[ResponseSettings, _Mapping]] = ..., input: _Optional[_Iterable[_Union[_item_pb2.Item, _Mapping]]] = ..., previous_response_id: _Optional[str] = ..., conversation_id: _Optional[str] = ...) -> None: ...

class ResponseUsage(_message.Message):
    __slots__ = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class ResponseError(_message.Message):
    __slots__ = ("code", "message", "param")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "state", "create_time", "complete_time", "expire_time", "settings", "previous_response_id", "conversation_id", "output", "usage", "error", "incomplete_reason", "ignored_parameters")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Response.State]
        STATE_QUEUED: _ClassVar[Response.State]
        STATE_IN_PROGRESS: _ClassVar[Response.State]
        STATE_COMPLETED: _ClassVar[Response.State]
        STATE_FAILED: _ClassVar[Response.State]
        STATE_INCOMPLETE: _ClassVar[Response.State]
        STATE_CANCELLED: _ClassVar[Response.State]
    STATE_UNSPECIFIED: Response.State
    STATE_QUEUED: Response.State
    STATE_IN_PROGRESS: Response.State
    STATE_COMPLETED: Response.State
    STATE_FAILED: Response.State
    STATE_INCOMPLETE: Response.State
    STATE_CANCELLED: Response.State
    class IncompleteReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        INCOMPLETE_REASON_UNSPECIFIED: _ClassVar[Response.IncompleteReason]
        INCOMPLETE_REASON_MAX_OUTPUT_TOKENS: _ClassVar[Response.IncompleteReason]
        INCOMPLETE_REASON_CONTENT_FILTER: _ClassVar[Response.IncompleteReason]
    INCOMPLETE_REASON_UNSPECIFIED: Response.IncompleteReason
    INCOMPLETE_REASON_MAX_OUTPUT_TOKENS: Response.IncompleteReason
    INCOMPLETE_REASON_CONTENT_FILTER: Response.IncompleteReason
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_REASON_FIELD_NUMBER: _ClassVar[int]
    IGNORED_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: Response.State
    create_time: _timestamp_pb2.Timestamp
    complete_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    settings: ResponseSettings
    previous_response_id: str
    conversation_id: str
    output: _containers.RepeatedCompositeFieldContainer[_item_pb2.Item]
    usage: ResponseUsage
    error: ResponseError
    incomplete_reason: Response.IncompleteReason
    ignored_parameters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[Response.State, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., complete_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., settings: _Optional[_Union[ResponseSettings, _Mapping]] = ..., previous_response_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., output: _Optional[_Iterable[_Union[_item_pb2.Item, _Mapping]]] = ..., usage: _Optional[_Union[ResponseUsage, _Mapping]] = ..., error: _Optional[_Union[ResponseError, _Mapping]] = ..., incomplete_reason: _Optional[_Union[Response.IncompleteReason, str]] = ..., ignored_parameters: _Optional[_Iterable[str]] = ...) -> None: ...
