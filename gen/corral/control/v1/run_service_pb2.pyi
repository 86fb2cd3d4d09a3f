from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import listing_pb2 as _listing_pb2
from corral.control.v1 import message_pb2 as _message_pb2
from corral.control.v1 import run_pb2 as _run_pb2
from corral.control.v1 import run_event_pb2 as _run_event_pb2
from corral.control.v1 import thread_pb2 as _thread_pb2
from corral.control.v1 import tool_pb2 as _tool_pb2
from corral.control.v1 import vector_store_service_pb2 as _vector_store_service_pb2
from corral.inference.v1 import generation_pb2 as _generation_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunOptions(_message.Message):
    __slots__ = ("assistant_id", "model", "instructions", "additional_instructions", "additional_messages", "tools", "tool_resources", "metadata", "options", "response_format", "reasoning_effort", "tool_choice", "parallel_tool_calls", "truncation", "max_prompt_tokens", "max_completion_tokens")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ASSISTANT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    assistant_id: str
    model: str
    instructions: str
    additional_instructions: str
    additional_messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.NewMessage]
    tools: RunTools
    tool_resources: _tool_pb2.ToolResources
    metadata: _containers.ScalarMap[str, str]
    options: _generation_pb2.GenerationOptions
    response_format: _tool_pb2.AnswerFormat
    reasoning_effort: str
    tool_choice: _tool_pb2.ToolSelection
    parallel_tool_calls: bool
    truncation: _run_pb2.RunTruncation
    max_prompt_tokens: int
    max_completion_tokens: int
    def __init__(self, assistant_id: _Optional[str] = ..., model: _Optional[str] = ..., instructions: _Optional[str] = ..., additional_instructions: _Optional[str] = ..., additional_messages: _Optional[_Iterable[_Union[_message_pb2.NewMessage, _Mapping]]] = ..., tools: _Optional[_Union[RunTools, _Mapping]] = ..., tool_resources: _Optional[_Union[_tool_pb2.ToolResources, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., options: _Optional[_Union[_generation_pb2.GenerationOptions, _Mapping]] = ..., response_format: _Optional[_Union[_tool_pb2.AnswerFormat, _Mapping]] = ..., reasoning_effort: _Optional[str] = ..., tool_choice: _Optional[_Union[_tool_pb2.ToolSelection, _Mapping]] = ..., parallel_tool_calls: _Optional[bool] = ..., truncation: _Optional[_Union[_run_pb2.RunTruncation, _Mapping]] = ..., max_prompt_tokens: _Optional[int] = ..., max_completion_tokens: _Optional[int] = ...) -> None: ...

class RunTools(_message.Message):
    __slots__ = ("tools",)
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    tools: _containers.RepeatedCompositeFieldContainer[_tool_pb2.Tool]
    def __init__(self, tools: _Optional[_Iterable[_Union[_tool_pb2.Tool, _Mapping]]] = ...) -> None: ...

class CreateRunRequest(_message.Message):
    __slots__ = ("thread_id", "run", "request_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run: RunOptions
    request_id: str
    def __init__(self, thread_id: _Optional[str] = ..., run: _Optional[_Union[RunOptions, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateRunResponse(_message.Message):
    __slots__ = ("run", "rate_limits")
    RUN_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class CreateThreadAndRunRequest(_message.Message):
    __slots__ = ("thread", "messages", "run", "request_id", "new_vector_stores")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_VECTOR_STORES_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.Thread
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.NewMessage]
    run: RunOptions
    request_id: str
    new_vector_stores: _containers.RepeatedCompositeFieldContainer[_vector_store_service_pb2.CreateVectorStoreRequest]
    def __init__(self, thread: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.NewMessage, _Mapping]]] = ..., run: _Optional[_Union[RunOptions, _Mapping]] = ..., request_id: _Optional[str] = ..., new_vector_stores: _Optional[_Iterable[_Union[_vector_store_service_pb2.CreateVectorStoreRequest, _Mapping]]] = ...) -> None: ...

class CreateThreadAndRunResponse(_message.Message):
    __slots__ = ("run", "rate_limits")
    RUN_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("thread_id", "run_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("thread_id", "page_size", "page_token", "after", "before", "order")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    page_size: int
    page_token: str
    after: str
    before: str
    order: _listing_pb2.ListOrder
    def __init__(self, thread_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[str] = ..., before: _Optional[str] = ..., order: _Optional[_Union[_listing_pb2.ListOrder, str]] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[_run_pb2.Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[_run_pb2.Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateRunRequest(_message.Message):
    __slots__ = ("thread_id", "run_id", "metadata", "update_mask")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    metadata: _containers.ScalarMap[str, str]
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("thread_id", "run_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class SubmitToolOutputsRequest(_message.Message):
    __slots__ = ("thread_id", "run_id", "outputs", "request_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    outputs: _containers.RepeatedCompositeFieldContainer[ToolOutput]
    request_id: str
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[ToolOutput, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class ToolOutput(_message.Message):
    __slots__ = ("call_id", "output")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    output: str
    def __init__(self, call_id: _Optional[str] = ..., output: _Optional[str] = ...) -> None: ...

class SubmitToolOutputsResponse(_message.Message):
    __slots__ = ("run", "last_event", "rate_limits")
    RUN_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    last_event: int
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ..., last_event: _Optional[int] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class GetRunStepRequest(_message.Message):
    __slots__ = ("thread_id", "run_id", "step_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    step_id: str
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ..., step_id: _Optional[str] = ...) -> None: ...

class GetRunStepResponse(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: _run_pb2.RunStep
    def __init__(self, step: _Optional[_Union[_run_pb2.RunStep, _Mapping]] = ...) -> None: ...

class ListRunStepsRequest(_message.Message):
    __slots__ = ("thread_id", "run_id", "page_size", "page_token", "after", "before", "order")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    page_size: int
    page_token: str
    after: str
    before: str
    order: _listing_pb2.ListOrder
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[str] = ..., before: _Optional[str] = ..., order: _Optional[_Union[_listing_pb2.ListOrder, str]] = ...) -> None: ...

class ListRunStepsResponse(_message.Message):
    __slots__ = ("steps", "next_page_token")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[_run_pb2.RunStep]
    next_page_token: str
    def __init__(self, steps: _Optional[_Iterable[_Union[_run_pb2.RunStep, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("thread_id", "run_id", "after")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    after: int
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("number", "event")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    event: _run_event_pb2.RunEvent
    def __init__(self, number: _Optional[int] = ..., event: _Optional[_Union[_run_event_pb2.RunEvent, _Mapping]] = ...) -> None: ...
