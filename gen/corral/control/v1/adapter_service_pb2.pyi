import datetime

from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import adapter_pb2 as _adapter_pb2
from corral.control.v1 import listing_pb2 as _listing_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateAdapterRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: _adapter_pb2.AdapterHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[_adapter_pb2.AdapterHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class CreateAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _adapter_pb2.Adapter
    def __init__(self, adapter: _Optional[_Union[_adapter_pb2.Adapter, _Mapping]] = ...) -> None: ...

class GetAdapterRequest(_message.Message):
    __slots__ = ("adapter", "wait")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    wait: _duration_pb2.Duration
    def __init__(self, adapter: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _adapter_pb2.Adapter
    def __init__(self, adapter: _Optional[_Union[_adapter_pb2.Adapter, _Mapping]] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "after", "order")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    after: str
    order: _listing_pb2.ListOrder
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., after: _Optional[str] = ..., order: _Optional[_Union[_listing_pb2.ListOrder, str]] = ...) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("adapters", "next_page_token")
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[_adapter_pb2.Adapter]
    next_page_token: str
    def __init__(self, adapters: _Optional[_Iterable[_Union[_adapter_pb2.Adapter, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateAdapterRequest(_message.Message):
    __slots__ = ("adapter", "default_scale", "standing_scale", "description", "etag", "update_mask")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SCALE_FIELD_NUMBER: _ClassVar[int]
    STANDING_SCALE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    default_scale: float
    standing_scale: float
    description: str
    etag: str
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, adapter: _Optional[str] = ..., default_scale: _Optional[float] = ..., standing_scale: _Optional[float] = ..., description: _Optional[str] = ..., etag: _Optional[str] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _adapter_pb2.Adapter
    def __init__(self, adapter: _Optional[_Union[_adapter_pb2.Adapter, _Mapping]] = ...) -> None: ...

class DeleteAdapterRequest(_message.Message):
    __slots__ = ("adapter", "etag", "wait")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    etag: str
    wait: _duration_pb2.Duration
    def __init__(self, adapter: _Optional[str] = ..., etag: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DeleteAdapterResponse(_message.Message):
    __slots__ = ("adapter_id", "frontend_count", "pending_frontend_count")
    ADAPTER_ID_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_FRONTEND_COUNT_FIELD_NUMBER: _ClassVar[int]
    adapter_id: str
    frontend_count: int
    pending_frontend_count: int
    def __init__(self, adapter_id: _Optional[str] = ..., frontend_count: _Optional[int] = ..., pending_frontend_count: _Optional[int] = ...) -> None: ...

class RetryAdapterRequest(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    def __init__(self, adapter: _Optional[str] = ...) -> None: ...

class RetryAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _adapter_pb2.Adapter
    def __init__(self, adapter: _Optional[_Union[_adapter_pb2.Adapter, _Mapping]] = ...) -> None: ...

class WatchDesiredRequest(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: str
    def __init__(self, revision: _Optional[str] = ...) -> None: ...

class WatchDesiredResponse(_message.Message):
    __slots__ = ("state", "change", "revision")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    state: DesiredState
    change: DesiredChange
    revision: str
    def __init__(self, state: _Optional[_Union[DesiredState, _Mapping]] = ..., change: _Optional[_Union[DesiredChange, _Mapping]] = ..., revision: _Optional[str] = ...) -> None: ...

class DesiredState(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[_adapter_pb2.DesiredAdapter]
    def __init__(self, adapters: _Optional[_Iterable[_Union[_adapter_pb2.DesiredAdapter, _Mapping]]] = ...) -> None: ...

class DesiredChange(_message.Message):
    __slots__ = ("adapters", "removed_ids")
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_IDS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[_adapter_pb2.DesiredAdapter]
    removed_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, adapters: _Optional[_Iterable[_Union[_adapter_pb2.DesiredAdapter, _Mapping]]] = ..., removed_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReportAdaptersRequest(_message.Message):
    __slots__ = ("frontend", "address", "reports", "revision")
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    frontend: str
    address: str
    reports: _containers.RepeatedCompositeFieldContainer[_adapter_pb2.AdapterReport]
    revision: str
    def __init__(self, frontend: _Optional[str] = ..., address: _Optional[str] = ..., reports: _Optional[_Iterable[_Union[_adapter_pb2.AdapterReport, _Mapping]]] = ..., revision: _Optional[str] = ...) -> None: ...

class ReportAdaptersResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DownloadAdapterRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    def __init__(self, sha256: _Optional[str] = ...) -> None: ...

class DownloadAdapterResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...
