import datetime

from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ItemRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ITEM_ROLE_UNSPECIFIED: _ClassVar[ItemRole]
    ITEM_ROLE_USER: _ClassVar[ItemRole]
    ITEM_ROLE_ASSISTANT: _ClassVar[ItemRole]
    ITEM_ROLE_SYSTEM: _ClassVar[ItemRole]
    ITEM_ROLE_DEVELOPER: _ClassVar[ItemRole]
ITEM_ROLE_UNSPECIFIED: ItemRole
ITEM_ROLE_USER: ItemRole
ITEM_ROLE_ASSISTANT: ItemRole
ITEM_ROLE_SYSTEM: ItemRole
ITEM_ROLE_DEVELOPER: ItemRole

class Item(_message.Message):
    __slots__ = ("id", "status", "create_time", "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning", "compaction", "file_search_call", "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[Item.Status]
        STATUS_IN_PROGRESS: _ClassVar[Item.Status]
        STATUS_COMPLETED: _ClassVar[Item.Status]
        STATUS_INCOMPLETE: _ClassVar[Item.Status]
    STATUS_UNSPECIFIED: Item.Status
    STATUS_IN_PROGRESS: Item.Status
    STATUS_COMPLETED: Item.Status
    STATUS_INCOMPLETE: Item.Status
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_TOOL_CALL_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    FILE_SEARCH_CALL_FIELD_NUMBER: _ClassVar[int]
    MCP_LIST_TOOLS_FIELD_NUMBER: _ClassVar[int]
    MCP_CALL_FIELD_NUMBER: _ClassVar[int]
    MCP_APPROVAL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MCP_APPROVAL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: Item.Status
    create_time: _timestamp_pb2.Timestamp
    message: MessageItem
    function_call: FunctionCallItem
    function_call_output: ToolOutputItem
    custom_tool_call: CustomToolCallItem
    custom_tool_call_output: ToolOutputItem
    reasoning: ReasoningItem
    compaction: CompactionItem
    file_search_call: FileSearchCallItem
    mcp_list_tools: McpListToolsItem
    mcp_call: McpCallItem
    mcp_approval_request: McpApprovalRequestItem
    mcp_approval_response: McpApprovalResponseItem
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[Item.Status, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., message: _Optional[_Union[MessageItem, _Mapping]] = ..., function_call: _Optional[_Union[FunctionCallItem, _Mapping]] = ..., function_call_output: _Optional[_Union[ToolOutputItem, _Mapping]] = ..., custom_tool_call: _Optional[_Union[CustomToolCallItem, _Mapping]] = ..., custom_tool_call_output: _Optional[_Union[ToolOutputItem, _Mapping]] = ..., reasoning: _Optional[_Union[ReasoningItem, _Mapping]] = ..., compaction: _Optional[_Union[CompactionItem, _Mapping]] = ..., file_search_call: _Optional[_Union[FileSearchCallItem, _Mapping]] = ..., mcp_list_tools: _Optional[_Union[McpListToolsItem, _Mapping]] = ..., mcp_call: _Optional[_Union[McpCallItem, _Mapping]] = ..., mcp_approval_request: _Optional[_Union[McpApprovalRequestItem, _Mapping]] = ..., mcp_approval_response: _Optional[_Union[McpApprovalResponseItem, _Mapping]] = ...) -> None: ...

class MessageItem(_message.Message):
    __slots__ = ("role", "parts")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    role: ItemRole
    parts: _containers.RepeatedCompositeFieldContainer[ItemPart]
    def __init__(self, role: _Optional[_Union[ItemRole, str]] = ..., parts: _Optional[_Iterable[_Union[ItemPart, _Mapping]]] = ...) -> None: ...

class ItemPart(_message.Message):
    __slots__ = ("text", "refusal", "image", "file")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    text: TextPart
    refusal: str
    image: ImagePart
    file: FilePart
    def __init__(self, text: _Optional[_Union[TextPart, _Mapping]] = ..., refusal: _Optional[str] = ..., image: _Optional[_Union[ImagePart, _Mapping]] = ..., file: _Optional[_Union[FilePart, _Mapping]] = ...) -> None: ...

class TextPart(_message.Message):
    __slots__ = ("text", "citations", "logprobs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    citations: _containers.RepeatedCompositeFieldContainer[FileCitation]
    logprobs: _containers.RepeatedCompositeFieldContainer[ItemLogprob]
    def __init__(self, text: _Optional[str] = ..., citations: _Optional[_Iterable[_Union[FileCitation, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[ItemLogprob, _Mapping]]] = ...) -> None: ...

class FileCitation(_message.Message):
    __slots__ = ("file_id", "filename", "marker", "start", "end")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    filename: str
    marker: str
    start: int
    end: int
    def __init__(self, file_id: _Optional[str] = ..., filename: _Optional[str] = ..., marker: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ItemLogprob(_message.Message):
    __slots__ = ("token", "logprob", "raw", "top")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    raw: bytes
    top: _containers.RepeatedCompositeFieldContainer[ItemLogprob]
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ..., raw: _Optional[bytes] = ..., top: _Optional[_Iterable[_Union[ItemLogprob, _Mapping]]] = ...) -> None: ...

class ImagePart(_message.Message):
    __slots__ = ("url", "file_id", "detail")
    URL_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    url: str
    file_id: str
    detail: str
    def __init__(self, url: _Optional[str] = ..., file_id: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class FilePart(_message.Message):
    __slots__ = ("file_id", "data_url", "filename")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_URL_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    data_url: str
    filename: str
    def __init__(self, file_id: _Optional[str] = ..., data_url: _Optional[str] = ..., filename: _Optional[str] = ...) -> None: ...

class FunctionCallItem(_message.Message):
    __slots__ = ("call_id", "name", "arguments_json")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    arguments_json: str
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class CustomToolCallItem(_message.Message):
    __slots__ = ("call_id", "name", "input")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    input: str
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., input: _Optional[str] = ...) -> None: ...

class ToolOutputItem(_message.Message):
    __slots__ = ("call_id", "output")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    output: _containers.RepeatedCompositeFieldContainer[ItemPart]
    def __init__(self, call_id: _Optional[str] = ..., output: _Optional[_Iterable[_Union[ItemPart, _Mapping]]] = ...) -> None: ...

class ReasoningItem(_message.Message):
    __slots__ = ("text", "sealed")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    text: str
    sealed: str
    def __init__(self, text: _Optional[str] = ..., sealed: _Optional[str] = ...) -> None: ...

class CompactionItem(_message.Message):
    __slots__ = ("sealed",)
    SEALED_FIELD_NUMBER: _ClassVar[int]
    sealed: str
    def __init__(self, sealed: _Optional[str] = ...) -> None: ...

class FileSearchCallItem(_message.Message):
    __slots__ = ("call_id", "queries", "results", "problem")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    queries: _containers.RepeatedScalarFieldContainer[str]
    results: _containers.RepeatedCompositeFieldContainer[FileSearchResult]
    problem: str
    def __init__(self, call_id: _Optional[str] = ..., queries: _Optional[_Iterable[str]] = ..., results: _Optional[_Iterable[_Union[FileSearchResult, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class FileSearchResult(_message.Message):
    __slots__ = ("file_id", "filename", "score", "text", "attributes_json")
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_JSON_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    filename: str
    score: float
    text: str
    attributes_json: str
    def __init__(self, file_id: _Optional[str] = ..., filename: _Optional[str] = ..., score: _Optional[float] = ..., text: _Optional[str] = ..., attributes_json: _Optional[str] = ...) -> None: ...

class McpListToolsItem(_message.Message):
    __slots__ = ("server_label", "tools", "problem")
    SERVER_LABEL_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    server_label: str
    tools: _containers.RepeatedCompositeFieldContainer[McpToolDescription]
    problem: str
    def __init__(self, server_label: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[McpToolDescription, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class McpToolDescription(_message.Message):
    __slots__ = ("name", "description", "input_schema_json", "annotations_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    input_schema_json: str
    annotations_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., input_schema_json: _Optional[str] = ..., annotations_json: _Optional[str] = ...) -> None: ...

class McpCallItem(_message.Message):
    __slots__ = ("server_label", "name", "arguments_json", "output", "problem", "approval_request_id")
    SERVER_LABEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    server_label: str
    name: str
    arguments_json: str
    output: str
    problem: str
    approval_request_id: str
    def __init__(self, server_label: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., output: _Optional[str] = ..., problem: _Optional[str] = ..., approval_request_id: _Optional[str] = ...) -> None: ...

class McpApprovalRequestItem(_message.Message):
    __slots__ = ("server_label", "name", "arguments_json")
    SERVER_LABEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    server_label: str
    name: str
    arguments_json: str
    def __init__(self, server_label: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class McpApprovalResponseItem(_message.Message):
    __slots__ = ("approval_request_id", "approve", "reason")
    APPROVAL_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    APPROVE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    approval_request_id: str
    approve: bool
    reason: str
    def __init__(self, approval_request_id: _Optional[str] = ..., approve: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...
