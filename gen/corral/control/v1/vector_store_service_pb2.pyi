from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import listing_pb2 as _listing_pb2
from corral.control.v1 import vector_store_pb2 as _vector_store_pb2
from corral.control.v1 import vector_store_search_pb2 as _vector_store_search_pb2
from corral.inference.v1 import generation_pb2 as _generation_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateVectorStoreRequest(_message.Message):
    __slots__ = ("name", "description", "file_ids", "chunking", "expire_after_days", "metadata", "request_id")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FILE_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_DAYS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    file_ids: _containers.RepeatedScalarFieldContainer[str]
    chunking: _vector_store_pb2.ChunkingStrategy
    expire_after_days: int
    metadata: _containers.ScalarMap[str, str]
    request_id: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., file_ids: _Optional[_Iterable[str]] = ..., chunking: _Optional[_Union[_vector_store_pb2.ChunkingStrategy, _Mapping]] = ..., expire_after_days: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateVectorStoreResponse(_message.Message):
    __slots__ = ("vector_store", "rate_limits")
    VECTOR_STORE_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    vector_store: _vector_store_pb2.VectorStore
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, vector_store: _Optional[_Union[_vector_store_pb2.VectorStore, _Mapping]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class GetVectorStoreRequest(_message.Message):
    __slots__ = ("vector_store_id",)
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    def __init__(self, vector_store_id: _Optional[str] = ...) -> None: ...

class GetVectorStoreResponse(_message.Message):
    __slots__ = ("vector_store",)
    VECTOR_STORE_FIELD_NUMBER: _ClassVar[int]
    vector_store: _vector_store_pb2.VectorStore
    def __init__(self, vector_store: _Optional[_Union[_vector_store_pb2.VectorStore, _Mapping]] = ...) -> None: ...

class ListVectorStoresRequest(_message.Message):
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

class ListVectorStoresResponse(_message.Message):
    __slots__ = ("vector_stores", "next_page_token")
    VECTOR_STORES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    vector_stores: _containers.RepeatedCompositeFieldContainer[_vector_store_pb2.VectorStore]
    next_page_token: str
    def __init__(self, vector_stores: _Optional[_Iterable[_Union[_vector_store_pb2.VectorStore, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateVectorStoreRequest(_message.Message):
    __slots__ = ("vector_store_id", "name", "expire_after_days", "metadata", "update_mask")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_DAYS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    name: str
    expire_after_days: int
    metadata: VectorStoreMetadata
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, vector_store_id: _Optional[str] = ..., name: _Optional[str] = ..., expire_after_days: _Optional[int] = ..., metadata: _Optional[_Union[VectorStoreMetadata, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class VectorStoreMetadata(_message.Message):
    __slots__ = ("pairs",)
    class PairsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.ScalarMap[str, str]
    def __init__(self, pairs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateVectorStoreResponse(_message.Message):
    __slots__ = ("vector_store",)
    VECTOR_STORE_FIELD_NUMBER: _ClassVar[int]
    vector_store: _vector_store_pb2.VectorStore
    def __init__(self, vector_store: _Optional[_Union[_vector_store_pb2.VectorStore, _Mapping]] = ...) -> None: ...

class DeleteVectorStoreRequest(_message.Message):
    __slots__ = ("vector_store_id",)
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    def __init__(self, vector_store_id: _Optional[str] = ...) -> None: ...

class DeleteVectorStoreResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SearchVectorStoreRequest(_message.Message):
    __slots__ = ("vector_store_id", "queries", "max_results", "filter", "ranking")
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESULTS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RANKING_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    queries: _containers.RepeatedScalarFieldContainer[str]
    max_results: int
    filter: _vector_store_search_pb2.AttributeFilter
    ranking: _vector_store_search_pb2.SearchRanking
    def __init__(self, vector_store_id: _Optional[str] = ..., queries: _Optional[_Iterable[str]] = ..., max_results: _Optional[int] = ..., filter: _Optional[_Union[_vector_store_search_pb2.AttributeFilter, _Mapping]] = ..., ranking: _Optional[_Union[_vector_store_search_pb2.SearchRanking, _Mapping]] = ...) -> None: ...

class SearchVectorStoreResponse(_message.Message):
    __slots__ = ("hits", "rate_limits")
    HITS_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[_vector_store_search_pb2.VectorStoreSearchHit]
    rate_limits: _containers.RepeatedCompositeFieldContainer[_generation_pb2.RateLimitStatus]
    def __init__(self, hits: _Optional[_Iterable[_Union[_vector_store_search_pb2.VectorStoreSearchHit, _Mapping]]] = ..., rate_limits: _Optional[_Iterable[_Union[_generation_pb2.RateLimitStatus, _Mapping]]] = ...) -> None: ...

class WatchVectorStoreRequest(_message.Message):
    __slots__ = ("vector_store_id",)
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    vector_store_id: str
    def __init__(self, vector_store_id: _Optional[str] = ...) -> None: ...

class WatchVectorStoreResponse(_message.Message):
    __slots__ = ("vector_store",)
    VECTOR_STORE_FIELD_NUMBER: _ClassVar[int]
    vector_store: _vector_store_pb2.VectorStore
    def __init__(self, vector_store: _Optional[_Union[_vector_store_pb2.VectorStore, _Mapping]] = ...) -> None: ...
