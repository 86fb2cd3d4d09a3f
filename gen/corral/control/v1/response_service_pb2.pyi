import datetime

from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import item_pb2 as _item_pb2
from corral.control.v1 import listing_pb2 as _listing_pb2
from corral.control.v1 import response_pb2 as _response_pb2
from corral.control.v1 import response_event_pb2 as _response_event_pb2
from corral.inference.v1 import generation_pb2 as _generation_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateResponseRequest(_message.Message):
    __slots__ = ("new_response", "request_id")
    NEW_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    new_response: _response_pb2.NewResponse
    request_id: str
    def __init__(self, new_response: _Optional[_Union[_response_pb2.NewResponse, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateResponseResponse(_message.Message):
    __slots__ = ("response", "rate_limits")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    response: _response_pb2.Response
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, response: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class StreamResponseRequest(_message.Message):
    __slots__ = ("new_response", "request_id")
    NEW_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    new_response: _response_pb2.NewResponse
    request_id: str
    def __init__(self, new_response: _Optional[_Union[_response_pb2.NewResponse, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class StreamResponseResponse(_message.Message):
    __slots__ = ("event", "rate_limits")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    event: _response_event_pb2.ResponseEvent
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, event: _Optional[_Union[_response_event_pb2.ResponseEvent, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class WatchResponseRequest(_message.Message):
    __slots__ = ("response_id", "after")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    after: int
    def __init__(self, response_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class WatchResponseResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: _response_event_pb2.ResponseEvent
    def __init__(self, event: _Optional[_Union[_response_event_pb2.ResponseEvent, _Mapping]] = ...) -> None: ...

class GetResponseRequest(_message.Message):
    __slots__ = ("response_id", "include")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    include: _containers.RepeatedScalarFieldContainer[_response_pb2.ResponseInclude]
    def __init__(self, response_id: _Optional[str] = ..., include: _Optional[_Iterable[_Union[_response_pb2.ResponseInclude, str]]] = ...) -> None: ...

class GetResponseResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: _response_pb2.Response
    def __init__(self, response: _Optional[_Union[_response_pb2.Response, _Mapping]] = ...) -> None: ...

class ListResponsesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "after", "before", "order")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    after: str
    before: str
    order: _listing_pb2.ListOrder
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[str] = ..., before: _Optional[str] = ..., order: _Optional[_Union[_listing_pb2.ListOrder, str]] = ...) -> None: ...

class ListResponsesResponse(_message.Message):
    __slots__ = ("responses", "next_page_token")
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[_response_pb2.Response]
    next_page_token: str
    def __init__(self, responses: _Optional[_Iterable[_Union[_response_pb2.Response, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteResponseRequest(_message.Message):
    __slots__ = ("response_id",)
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    def __init__(self, response_id: _Optional[str] = ...) -> None: ...

class DeleteResponseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelResponseRequest(_message.Message):
    __slots__ = ("response_id",)
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    def __init__(self, response_id: _Optional[str] = ...) -> None: ...

class CancelResponseResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: _response_pb2.Response
    def __init__(self, response: _Optional[_Union[_response_pb2.Response, _Mapping]] = ...) -> None: ...

class ListInputItemsRequest(_message.Message):
    __slots__ = ("response_id", "page_size", "page_token", "after", "order", "include")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    page_size: int
    page_token: str
    after: str
    order: _listing_pb2.ListOrder
    include: _containers.RepeatedScalarFieldContainer[_response_pb2.ResponseInclude]
    def __init__(self, response_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[str] = ..., order: _Optional[_Union[_listing_pb2.ListOrder, str]] = ..., include: _Optional[_Iterable[_Union[_response_pb2.ResponseInclude, str]]] = ...) -> None: ...

class ListInputItemsResponse(_message.Message):
    __slots__ = ("items", "next_page_token")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[_item_pb2.Item]
    next_page_token: str
    def __init__(self, items: _Optional[_Iterable[_Union[_item_pb2.Item, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CountInputTokensRequest(_message.Message):
    __slots__ = ("new_response",)
    NEW_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    new_response: _response_pb2.NewResponse
    def __init__(self, new_response: _Optional[_Union[_response_pb2.NewResponse, _Mapping]] = ...) -> None: ...

class CountInputTokensResponse(_message.Message):
    __slots__ = ("input_tokens",)
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ...) -> None: ...

class PrepareResponseRequest(_message.Message):
    __slots__ = ("new_response",)
    NEW_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    new_response: _response_pb2.NewResponse
    def __init__(self, new_response: _Optional[_Union[_response_pb2.NewResponse, _Mapping]] = ...) -> None: ...

class PrepareResponseResponse(_message.Message):
    __slots__ = ("input_tokens", "cached_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cached_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class CompactResponseRequest(_message.Message):
    __slots__ = ("model", "input", "previous_response_id", "instructions", "prompt_cache_key")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    model: str
    input: _containers.RepeatedCompositeFieldContainer[_item_pb2.Item]
    previous_response_id: str
    instructions: str
    prompt_cache_key: str
    def __init__(self, model: _Optional[str] = ..., input: _Optional[_Iterable[_Union[_item_pb2.Item, _Mapping]]] = ..., previous_response_id: _Optional[str] = ..., instructions: _Optional[str] = ..., prompt_cache_key: _Optional[str] = ...) -> None: ...

class CompactResponseResponse(_message.Message):
    __slots__ = ("id", "create_time", "output", "usage", "rate_limits")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    id: str
    create_time: _timestamp_pb2.Timestamp
    output: _containers.RepeatedCompositeFieldContainer[_item_pb2.Item]
    usage: _response_pb2.ResponseUsage
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, id: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., output: _Optional[_Iterable[_Union[_item_pb2.Item, _Mapping]]] = ..., usage: _Optional[_Union[_response_pb2.ResponseUsage, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class ListMcpServersRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListMcpServersResponse(_message.Message):
    __slots__ = ("mcp_servers", "next_page_token")
    MCP_SERVERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    mcp_servers: _containers.RepeatedCompositeFieldContainer[McpServer]
    next_page_token: str
    def __init__(self, mcp_servers: _Optional[_Iterable[_Union[McpServer, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class McpServer(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
