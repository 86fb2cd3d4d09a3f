from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import assistant_pb2 as _assistant_pb2
from corral.control.v1 import listing_pb2 as _listing_pb2
from corral.control.v1 import vector_store_service_pb2 as _vector_store_service_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateAssistantRequest(_message.Message):
    __slots__ = ("assistant", "request_id", "new_vector_stores")
    ASSISTANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_VECTOR_STORES_FIELD_NUMBER: _ClassVar[int]
    assistant: _assistant_pb2.Assistant
    request_id: str
    new_vector_stores: _containers.RepeatedCompositeFieldContainer[_vector_store_service_pb2.CreateVectorStoreRequest]
    def __init__(self, assistant: _Optional[_Union[_assistant_pb2.Assistant, _Mapping]] = ..., request_id: _Optional[str] = ..., new_vector_stores: _Optional[_Iterable[_Union[_vector_store_service_pb2.CreateVectorStoreRequest, _Mapping]]] = ...) -> None: ...

class CreateAssistantResponse(_message.Message):
    __slots__ = ("assistant",)
    ASSISTANT_FIELD_NUMBER: _ClassVar[int]
    assistant: _assistant_pb2.Assistant
    def __init__(self, assistant: _Optional[_Union[_assistant_pb2.Assistant, _Mapping]] = ...) -> None: ...

class GetAssistantRequest(_message.Message):
    __slots__ = ("assistant_id",)
    ASSISTANT_ID_FIELD_NUMBER: _ClassVar[int]
    assistant_id: str
    def __init__(self, assistant_id: _Optional[str] = ...) -> None: ...

class GetAssistantResponse(_message.Message):
    __slots__ = ("assistant",)
    ASSISTANT_FIELD_NUMBER: _ClassVar[int]
    assistant: _assistant_pb2.Assistant
    def __init__(self, assistant: _Optional[_Union[_assistant_pb2.Assistant, _Mapping]] = ...) -> None: ...

class ListAssistantsRequest(_message.Message):
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

class ListAssistantsResponse(_message.Message):
    __slots__ = ("assistants", "next_page_token")
    ASSISTANTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    assistants: _containers.RepeatedCompositeFieldContainer[_assistant_pb2.Assistant]
    next_page_token: str
    def __init__(self, assistants: _Optional[_Iterable[_Union[_assistant_pb2.Assistant, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateAssistantRequest(_message.Message):
    __slots__ = ("assistant", "update_mask")
    ASSISTANT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    assistant: _assistant_pb2.Assistant
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, assistant: _Optional[_Union[_assistant_pb2.Assistant, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateAssistantResponse(_message.Message):
    __slots__ = ("assistant",)
    ASSISTANT_FIELD_NUMBER: _ClassVar[int]
    assistant: _assistant_pb2.Assistant
    def __init__(self, assistant: _Optional[_Union[_assistant_pb2.Assistant, _Mapping]] = ...) -> None: ...

class DeleteAssistantRequest(_message.Message):
    __slots__ = ("assistant_id",)
    ASSISTANT_ID_FIELD_NUMBER: _ClassVar[int]
    assistant_id: str
    def __init__(self, assistant_id: _Optional[str] = ...) -> None: ...

class DeleteAssistantResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
