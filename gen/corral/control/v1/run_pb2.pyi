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

class Run(_message.Message):
    __slots__ = ("id", "thread_id", "assistant_id", "state", "create_time", "expire_time", "start_time", "end_time", "error", "incomplete_reason", "required_calls", "usage", "model", "instructions", "tools", "options", "response_format", "tool_choice", "parallel_tool_calls", "truncation", "max_prompt_tokens", "max_completion_tokens", "reasoning_effort", "metadata", "ignored_parameters")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Run.State]
        STATE_QUEUED: _ClassVar[Run.State]
        STATE_IN_PROGRESS: _ClassVar[Run.State]
        STATE_REQUIRES_ACTION: _ClassVar[Run.State]
        STATE_CANCELLING: _ClassVar[Run.State]
        STATE_CANCELLED: _ClassVar[Run.State]
        STATE_FAILED: _ClassVar[Run.State]
        STATE_COMPLETED: _ClassVar[Run.State]
        STATE_INCOMPLETE: _ClassVar[Run.State]
        STATE_EXPIRED: _ClassVar[Run.State]
    STATE_UNSPECIFIED: Run.State
    STATE_QUEUED: Run.State
    STATE_IN_PROGRESS: Run.State
    STATE_REQUIRES_ACTION: Run.State
    STATE_CANCELLING: Run.State
    STATE_CANCELLED: Run.State
    STATE_FAILED: Run.State
    STATE_COMPLETED: Run.State
    STATE_INCOMPLETE: Run.State
    STATE_EXPIRED: Run.State
    class IncompleteReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        INCOMPLETE_REASON_UNSPECIFIED: _ClassVar[Run.IncompleteReason]
        INCOMPLETE_REASON_MAX_COMPLETION_TOKENS: _ClassVar[Run.IncompleteReason]
        INCOMPLETE_REASON_MAX_PROMPT_TOKENS: _ClassVar[Run.IncompleteReason]
    INCOMPLETE_REASON_UNSPECIFIED: Run.IncompleteReason
    INCOMPLETE_REASON_MAX_COMPLETION_TOKENS: Run.IncompleteReason
    INCOMPLETE_REASON_MAX_PROMPT_TOKENS: Run.IncompleteReason
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    ASSISTANT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_REASON_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_CALLS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    IGNORED_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread_id: str
    assistant_id: str
    state: Run.State
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    error: RunError
    incomplete_reason: Run.IncompleteReason
    required_calls: _containers.RepeatedCompositeFieldContainer[_item_pb2.FunctionCallItem]
    usage: RunUsage
    model: str
    instructions: str
    tools: _containers.RepeatedCompositeFieldContainer[_tool_pb2.Tool]
    options: _generation_pb2.GenerationOptions
    response_format: _tool_pb2.AnswerFormat
    tool_choice: _tool_pb2.ToolSelection
    parallel_tool_calls: bool
    truncation: RunTruncation
    max_prompt_tokens: int
    max_completion_tokens: int
    reasoning_effort: str
    metadata: _containers.ScalarMap[str, str]
    ignored_parameters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., thread_id: _Optional[str] = ..., assistant_id: _Optional[str] = ..., state: _Optional[_Union[Run.State, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ..., incomplete_reason: _Optional[_Union[Run.IncompleteReason, str]] = ..., required_calls: _Optional[_Iterable[_Union[_item_pb2.FunctionCallItem, _Mapping]]] = ..., usage: _Optional[_Union[RunUsage, _Mapping]] = ..., model: _Optional[str] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[_tool_pb2.Tool, _Mapping]]] = ..., options: _Optional[_Union[_generation_pb2.GenerationOptions, _Mapping]] = ..., response_format: _Optional[_Union[_tool_pb2.AnswerFormat, _Mapping]] = ..., tool_choice: _Optional[_Union[_tool_pb2.ToolSelection, _Mapping]] = ..., parallel_tool_calls: _Optional[bool] = ..., truncation: _Optional[_Union[RunTruncation, _Mapping]] = ..., max_prompt_tokens: _Optional[int] = ..., max_completion_tokens: _Optional[int] = ..., reasoning_effort: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., ignored_parameters: _Optional[_Iterable[str]] = ...) -> None: ...

class RunError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class RunUsage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class RunTruncation(_message.Message):
    __slots__ = ("last_messages",)
    LAST_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    last_messages: int
    def __init__(self, last_messages: _Optional[int] = ...) -> None: ...

class RunStep(_message.Message):
    __slots__ = ("id", "run_id", "thread_id", "assistant_id", "state", "create_time", "end_time", "error", "message_id", "tool_calls", "usage")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RunStep.State]
        STATE_IN_PROGRESS: _ClassVar[RunStep.State]
        STATE_CANCELLED: _ClassVar[RunStep.State]
        STATE_FAILED: _ClassVar[RunStep.State]
        STATE_COMPLETED: _ClassVar[RunStep.State]
        STATE_EXPIRED: _ClassVar[RunStep.State]
    STATE_UNSPECIFIED: RunStep.State
    STATE_IN_PROGRESS: RunStep.State
    STATE_CANCELLED: RunStep.State
    STATE_FAILED: RunStep.State
    STATE_COMPLETED: RunStep.State
    STATE_EXPIRED: RunStep.State
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    ASSISTANT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    run_id: str
    thread_id: str
    assistant_id: str
    state: RunStep.State
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    error: RunError
    message_id: str
    tool_calls: StepCalls
    usage: RunUsage
    def __init__(self, id: _Optional[str] = ..., run_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., assistant_id: _Optional[str] = ..., state: _Optional[_Union[RunStep.State, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ..., message_id: _Optional[str] = ..., tool_calls: _Optional[_Union[StepCalls, _Mapping]] = ..., usage: _Optional[_Union[RunUsage, _Mapping]] = ...) -> None: ...

class StepCalls(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[StepCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[StepCall, _Mapping]]] = ...) -> None: ...

class StepCall(_message.Message):
    __slots__ = ("call_id", "function", "file_search")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FILE_SEARCH_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    function: FunctionStepCall
    file_search: FileSearchStepCall
    def __init__(self, call_id: _Optional[str] = ..., function: _Optional[_Union[FunctionStepCall, _Mapping]] = ..., file_search: _Optional[_Union[FileSearchStepCall, _Mapping]] = ...) -> None: ...

class FunctionStepCall(_message.Message):
    __slots__ = ("name", "arguments_json", "output")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments_json: str
    output: str
    def __init__(self, name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., output: _Optional[str] = ...) -> None: ...

class FileSearchStepCall(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_item_pb2.FileSearchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[_item_pb2.FileSearchResult, _Mapping]]] = ...) -> None: ...
