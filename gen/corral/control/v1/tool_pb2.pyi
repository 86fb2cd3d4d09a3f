from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tool(_message.Message):
    __slots__ = ("function", "custom", "file_search", "mcp")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    FILE_SEARCH_FIELD_NUMBER: _ClassVar[int]
    MCP_FIELD_NUMBER: _ClassVar[int]
    function: FunctionTool
    custom: CustomTool
    file_search: FileSearchTool
    mcp: McpTool
    def __init__(self, function: _Optional[_Union[FunctionTool, _Mapping]] = ..., custom: _Optional[_Union[CustomTool, _Mapping]] = ..., file_search: _Optional[_Union[FileSearchTool, _Mapping]] = ..., mcp: _Optional[_Union[McpTool, _Mapping]] = ...) -> None: ...

class FunctionTool(_message.Message):
    __slots__ = ("name", "description", "parameters_json", "strict")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    strict: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class CustomTool(_message.Message):
    __slots__ = ("name", "description", "syntax", "definition")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SYNTAX_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    syntax: str
    definition: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., syntax: _Optional[str] = ..., definition: _Optional[str] = ...) -> None: ...

class FileSearchTool(_message.Message):
    __slots__ = ("vector_store_ids", "max_results", "ranker", "score_threshold", "filters_json")
    VECTOR_STORE_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESULTS_FIELD_NUMBER: _ClassVar[int]
    RANKER_FIELD_NUMBER: _ClassVar[int]
    SCORE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FILTERS_JSON_FIELD_NUMBER: _ClassVar[int]
    vector_store_ids: _containers.RepeatedScalarFieldContainer[str]
    max_results: int
    ranker: str
    score_threshold: float
    filters_json: str
    def __init__(self, vector_store_ids: _Optional[_Iterable[str]] = ..., max_results: _Optional[int] = ..., ranker: _Optional[str] = ..., score_threshold: _Optional[float] = ..., filters_json: _Optional[str] = ...) -> None: ...

class McpTool(_message.Message):
    __slots__ = ("server_label", "description", "limits_tools", "allowed_tools", "approval", "approval_exempt")
    class Approval(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        APPROVAL_UNSPECIFIED: _ClassVar[McpTool.Approval]
        APPROVAL_ALWAYS: _ClassVar[McpTool.Approval]
        APPROVAL_NEVER: _ClassVar[McpTool.Approval]
    APPROVAL_UNSPECIFIED: McpTool.Approval
    APPROVAL_ALWAYS: McpTool.Approval
    APPROVAL_NEVER: McpTool.Approval
    SERVER_LABEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_TOOLS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_EXEMPT_FIELD_NUMBER: _ClassVar[int]
    server_label: str
    description: str
    limits_tools: bool
    allowed_tools: _containers.RepeatedScalarFieldContainer[str]
    approval: McpTool.Approval
    approval_exempt: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, server_label: _Optional[str] = ..., description: _Optional[str] = ..., limits_tools: _Optional[bool] = ..., allowed_tools: _Optional[_Iterable[str]] = ..., approval: _Optional[_Union[McpTool.Approval, str]] = ..., approval_exempt: _Optional[_Iterable[str]] = ...) -> None: ...

class ToolSelection(_message.Message):
    __slots__ = ("mode", "allowed_names", "is_one")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[ToolSelection.Mode]
        MODE_NONE: _ClassVar[ToolSelection.Mode]
        MODE_AUTO: _ClassVar[ToolSelection.Mode]
        MODE_REQUIRED: _ClassVar[ToolSelection.Mode]
    MODE_UNSPECIFIED: ToolSelection.Mode
    MODE_NONE: ToolSelection.Mode
    MODE_AUTO: ToolSelection.Mode
    MODE_REQUIRED: ToolSelection.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_NAMES_FIELD_NUMBER: _ClassVar[int]
    IS_ONE_FIELD_NUMBER: _ClassVar[int]
    mode: ToolSelection.Mode
    allowed_names: _containers.RepeatedScalarFieldContainer[str]
    is_one: bool
    def __init__(self, mode: _Optional[_Union[ToolSelection.Mode, str]] = ..., allowed_names: _Optional[_Iterable[str]] = ..., is_one: _Optional[bool] = ...) -> None: ...

class AnswerFormat(_message.Message):
    __slots__ = ("kind", "name", "description", "schema_json", "strict")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[AnswerFormat.Kind]
        KIND_TEXT: _ClassVar[AnswerFormat.Kind]
        KIND_JSON_OBJECT: _ClassVar[AnswerFormat.Kind]
        KIND_JSON_SCHEMA: _ClassVar[AnswerFormat.Kind]
    KIND_UNSPECIFIED: AnswerFormat.Kind
    KIND_TEXT: AnswerFormat.Kind
    KIND_JSON_OBJECT: AnswerFormat.Kind
    KIND_JSON_SCHEMA: AnswerFormat.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    kind: AnswerFormat.Kind
    name: str
    description: str
    schema_json: str
    strict: bool
    def __init__(self, kind: _Optional[_Union[AnswerFormat.Kind, str]] = ..., name: _Optional[str] = ..., description: _Optional[str] = ..., schema_json: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class ToolResources(_message.Message):
    __slots__ = ("vector_store_ids",)
    VECTOR_STORE_IDS_FIELD_NUMBER: _ClassVar[int]
    vector_store_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, vector_store_ids: _Optional[_Iterable[str]] = ...) -> None: ...
