from corral.control.v1 import item_pb2 as _item_pb2
from corral.control.v1 import response_pb2 as _response_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResponseEvent(_message.Message):
    __slots__ = ("sequence_number", "created", "queued", "in_progress", "completed", "incomplete", "failed", "cancelled", "output_item_added", "output_item_done", "content_part_added", "content_part_done", "output_text_delta", "output_text_done", "output_text_annotation_added", "refusal_delta", "refusal_done", "reasoning_summary_part_added", "reasoning_summary_text_delta", "reasoning_summary_text_done", "reasoning_summary_part_done", "function_call_arguments_delta", "function_call_arguments_done", "custom_tool_call_input_delta", "custom_tool_call_input_done", "file_search_call_in_progress", "file_search_call_searching", "file_search_call_completed", "mcp_list_tools_in_progress", "mcp_list_tools_completed", "mcp_list_tools_failed", "mcp_call_in_progress", "mcp_call_arguments_delta", "mcp_call_arguments_done", "mcp_call_completed", "mcp_call_failed", "compaction_compacting")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ITEM_ADDED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ITEM_DONE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_PART_ADDED_FIELD_NUMBER: _ClassVar[int]
    CONTENT_PART_DONE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_DONE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_ANNOTATION_ADDED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_DELTA_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_DONE_FIELD_NUMBER: _ClassVar[int]
    REASONING_SUMMARY_PART_ADDED_FIELD_NUMBER: _ClassVar[int]
    REASONING_SUMMARY_TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    REASONING_SUMMARY_TEXT_DONE_FIELD_NUMBER: _ClassVar[int]
    REASONING_SUMMARY_PART_DONE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_ARGUMENTS_DELTA_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_CALL_ARGUMENTS_DONE_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_TOOL_CALL_INPUT_DELTA_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_TOOL_CALL_INPUT_DONE_FIELD_NUMBER: _ClassVar[int]
    FILE_SEARCH_CALL_IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FILE_SEARCH_CALL_SEARCHING_FIELD_NUMBER: _ClassVar[int]
    FILE_SEARCH_CALL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    MCP_LIST_TOOLS_IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MCP_LIST_TOOLS_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    MCP_LIST_TOOLS_FAILED_FIELD_NUMBER: _ClassVar[int]
    MCP_CALL_IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MCP_CALL_ARGUMENTS_DELTA_FIELD_NUMBER: _ClassVar[int]
    MCP_CALL_ARGUMENTS_DONE_FIELD_NUMBER: _ClassVar[int]
    MCP_CALL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    MCP_CALL_FAILED_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_COMPACTING_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    created: _response_pb2.Response
    queued: _response_pb2.Response
    in_progress: _response_pb2.Response
    completed: _response_pb2.Response
    incomplete: _response_pb2.Response
    failed: _response_pb2.Response
    cancelled: _response_pb2.Response
    output_item_added: ResponseItemEvent
    output_item_done: ResponseItemEvent
    content_part_added: ResponsePartEvent
    content_part_done: ResponsePartEvent
    output_text_delta: ResponseTextEvent
    output_text_done: ResponseTextEvent
    output_text_annotation_added: ResponseAnnotationEvent
    refusal_delta: ResponseTextEvent
    refusal_done: ResponseTextEvent
    reasoning_summary_part_added: ResponseTextEvent
    reasoning_summary_text_delta: ResponseTextEvent
    reasoning_summary_text_done: ResponseTextEvent
    reasoning_summary_part_done: ResponseTextEvent
    function_call_arguments_delta: ResponseCallEvent
    function_call_arguments_done: ResponseCallEvent
    custom_tool_call_input_delta: ResponseCallEvent
    custom_tool_call_input_done: ResponseCallEvent
    file_search_call_in_progress: ResponseStepEvent
    file_search_call_searching: ResponseStepEvent
    file_search_call_completed: ResponseStepEvent
    mcp_list_tools_in_progress: ResponseStepEvent
    mcp_list_tools_completed: ResponseStepEvent
    mcp_list_tools_failed: ResponseStepEvent
    mcp_call_in_progress: ResponseStepEvent
    mcp_call_arguments_delta: ResponseCallEvent
    mcp_call_arguments_done: ResponseCallEvent
    mcp_call_completed: ResponseStepEvent
    mcp_call_failed: ResponseStepEvent
    compaction_compacting: ResponseStepEvent
    def __init__(self, sequence_number: _Optional[int] = ..., created: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., queued: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., in_progress: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., completed: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., incomplete: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., failed: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., cancelled: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., output_item_added: _Optional[_Union[ResponseItemEvent, _Mapping]] = ..., output_item_done: _Optional[_Union[ResponseItemEvent, _Mapping]] = ..., content_part_added: _Optional[_Union[ResponsePartEvent, _Mapping]] = ..., content_part_done: _Optional[_Union[ResponsePartEvent, _Mapping]] = ..., output_text_delta: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., output_text_done: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., output_text_annotation_added: _Optional[_Union[ResponseAnnotationEvent, _Mapping]] = ..., refusal_delta: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., refusal_done: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., reasoning_summary_part_added: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., reasoning_summary_text_delta: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., reasoning_summary_text_done: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., reasoning_summary_part_done: _Optional[_Union[ResponseTextEvent, _Mapping]] = ..., function_call_arguments_delta: _Optional[_Union[ResponseCallEvent, _Mapping]] = ..., function_call_arguments_done: _Optional[_Union[ResponseCallEvent, _Mapping]] = ..., custom_tool_call_input_delta: _Optional[_Union[ResponseCallEvent, _Mapping]] = ..., custom_tool_call_input_done: _Optional[_Union[ResponseCallEvent, _Mapping]] = ..., file_search_call_in_progress: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., file_search_call_searching: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., file_search_call_completed: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., mcp_list_tools_in_progress: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., mcp_list_tools_completed: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., mcp_list_tools_failed: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., mcp_call_in_progress: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., mcp_call_arguments_delta: _Optional[_Union[ResponseCallEvent, _Mapping]] = ..., mcp_call_arguments_done: _Optional[_Union[ResponseCallEvent, _Mapping]] = ..., mcp_call_completed: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., mcp_call_failed: _Optional[_Union[ResponseStepEvent, _Mapping]] = ..., compaction_compacting: _Optional[_Union[ResponseStepEvent, _Mapping]] = ...) -> None: ...

class ResponseItemEvent(_message.Message):
    __slots__ = ("output_index", "item")
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    output_index: int
    item: _item_pb2.Item
    def __init__(self, output_index: _Optional[int] = ..., item: _Optional[_Union[_item_pb2.Item, _Mapping]] = ...) -> None: ...

class ResponsePartEvent(_message.Message):
    __slots__ = ("item_id", "output_index", "part_index", "part")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    part_index: int
    part: _item_pb2.ItemPart
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., part_index: _Optional[int] = ..., part: _Optional[_Union[_item_pb2.ItemPart, _Mapping]] = ...) -> None: ...

class ResponseTextEvent(_message.Message):
    __slots__ = ("item_id", "output_index", "part_index", "text", "logprobs")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    part_index: int
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_item_pb2.ItemLogprob]
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., part_index: _Optional[int] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_item_pb2.ItemLogprob, _Mapping]]] = ...) -> None: ...

class ResponseAnnotationEvent(_message.Message):
    __slots__ = ("item_id", "output_index", "part_index", "annotation_index", "citation")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_INDEX_FIELD_NUMBER: _ClassVar[int]
    ANNOTATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    CITATION_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    part_index: int
    annotation_index: int
    citation: _item_pb2.FileCitation
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., part_index: _Optional[int] = ..., annotation_index: _Optional[int] = ..., citation: _Optional[_Union[_item_pb2.FileCitation, _Mapping]] = ...) -> None: ...

class ResponseCallEvent(_message.Message):
    __slots__ = ("item_id", "output_index", "text", "name")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    text: str
    name: str
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ..., text: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ResponseStepEvent(_message.Message):
    __slots__ = ("item_id", "output_index")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    output_index: int
    def __init__(self, item_id: _Optional[str] = ..., output_index: _Optional[int] = ...) -> None: ...
