from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import listing_pb2 as _listing_pb2
from corral.control.v1 import vector_store_pb2 as _vector_store_pb2
from corral.inference.v1 import generation_pb2 as _generation_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateVectorStoreFileRequest(_message.Message):
    __slots__ = ("vector_store_id", "file_id", "attributes", "chunking", "request_id")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _vector_store_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_vector_store_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    file_id: str
    attributes: _containers.MessageMap[str, _vector_store_pb2.AttributeValue]
    chunking: _vector_store_pb2.ChunkingStrategy
    request_id: str
    def __init__(self, vector_store_id: _Optional[str] = ..., file_id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _vector_store_pb2.AttributeValue]] = ..., chunking: _Optional[_Union[_vector_store_pb2.ChunkingStrategy, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateVectorStoreFileResponse(_message.Message):
    __slots__ = ("file", "rate_limits")
    FILE_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    file: _vector_store_pb2.VectorStoreFile
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, file: _Optional[_Union[_vector_store_pb2.VectorStoreFile, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class GetVectorStoreFileRequest(_message.Message):
    __slots__ = ("vector_store_id", "file_id")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    file_id: str
    def __init__(self, vector_store_id: _Optional[str] = ..., file_id: _Optional[str] = ...) -> None: ...

class GetVectorStoreFileResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: _vector_store_pb2.VectorStoreFile
    def __init__(self, file: _Optional[_Union[_vector_store_pb2.VectorStoreFile, _Mapping]] = ...) -> None: ...

class ListVectorStoreFilesRequest(_message.Message):
    __slots__ = ("vector_store_id", "batch_id", "state", "page_size", "page_token", "after", "before", "order")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    batch_id: str
    state: _vector_store_pb2.VectorStoreFile.State
    page_size: int
    page_token: str
    after: str
    before: str
    order: _listing_pb2.ListOrder
    def __init__(self, vector_store_id: _Optional[str] = ..., batch_id: _Optional[str] = ..., state: _Optional[_Union[_vector_store_pb2.VectorStoreFile.State, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[str] = ..., before: _Optional[str] = ..., order: _Optional[_Union[_listing_pb2.ListOrder, str]] = ...) -> None: ...

class ListVectorStoreFilesResponse(_message.Message):
    __slots__ = ("files", "next_page_token")
    FILES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[_vector_store_pb2.VectorStoreFile]
    next_page_token: str
    def __init__(self, files: _Optional[_Iterable[_Union[_vector_store_pb2.VectorStoreFile, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateVectorStoreFileRequest(_message.Message):
    __slots__ = ("vector_store_id", "file_id", "attributes", "update_mask")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _vector_store_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_vector_store_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    file_id: str
    attributes: _containers.MessageMap[str, _vector_store_pb2.AttributeValue]
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, vector_store_id: _Optional[str] = ..., file_id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _vector_store_pb2.AttributeValue]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateVectorStoreFileResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: _vector_store_pb2.VectorStoreFile
    def __init__(self, file: _Optional[_Union[_vector_store_pb2.VectorStoreFile, _Mapping]] = ...) -> None: ...

class DeleteVectorStoreFileRequest(_message.Message):
    __slots__ = ("vector_store_id", "file_id")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    file_id: str
    def __init__(self, vector_store_id: _Optional[str] = ..., file_id: _Optional[str] = ...) -> None: ...

class DeleteVectorStoreFileResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVectorStoreFileContentsRequest(_message.Message):
    __slots__ = ("vector_store_id", "file_id", "page_size", "page_token")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    file_id: str
    page_size: int
    page_token: str
    def __init__(self, vector_store_id: _Optional[str] = ..., file_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListVectorStoreFileContentsResponse(_message.Message):
    __slots__ = ("texts", "next_page_token")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CreateVectorStoreFileBatchRequest(_message.Message):
    __slots__ = ("vector_store_id", "files", "request_id")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    files: _containers.RepeatedCompositeFieldContainer[NewVectorStoreFile]
    request_id: str
    def __init__(self, vector_store_id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[NewVectorStoreFile, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class NewVectorStoreFile(_message.Message):
    __slots__ = ("file_id", "attributes", "chunking")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _vector_store_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_vector_store_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    attributes: _containers.MessageMap[str, _vector_store_pb2.AttributeValue]
    chunking: _vector_store_pb2.ChunkingStrategy
    def __init__(self, file_id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _vector_store_pb2.AttributeValue]] = ..., chunking: _Optional[_Union[_vector_store_pb2.ChunkingStrategy, _Mapping]] = ...) -> None: ...

class CreateVectorStoreFileBatchResponse(_message.Message):
    __slots__ = ("batch", "rate_limits")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    batch: _vector_store_pb2.VectorStoreFileBatch
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, batch: _Optional[_Union[_vector_store_pb2.VectorStoreFileBatch, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class GetVectorStoreFileBatchRequest(_message.Message):
    __slots__ = ("vector_store_id", "batch_id")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    batch_id: str
    def __init__(self, vector_store_id: _Optional[str] = ..., batch_id: _Optional[str] = ...) -> None: ...

class GetVectorStoreFileBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: _vector_store_pb2.VectorStoreFileBatch
    def __init__(self, batch: _Optional[_Union[_vector_store_pb2.VectorStoreFileBatch, _Mapping]] = ...) -> None: ...

class CancelVectorStoreFileBatchRequest(_message.Message):
    __slots__ = ("vector_store_id", "batch_id")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    batch_id: str
    def __init__(self, vector_store_id: _Optional[str] = ..., batch_id: _Optional[str] = ...) -> None: ...

class CancelVectorStoreFileBatchResponse(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: _vector_store_pb2.VectorStoreFileBatch
    def __init__(self, batch: _Optional[_Union[_vector_store_pb2.VectorStoreFileBatch, _Mapping]] = ...) -> None: ...
