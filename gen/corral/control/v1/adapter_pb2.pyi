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

class Adapter(_message.Message):
    __slots__ = ("id", "name", "model", "description", "default_scale", "standing_scale", "sha256", "file_bytes", "architecture", "base_model", "title", "rank", "size_bytes", "create_time", "update_time", "etag", "engines", "frontend_count", "ready_frontend_count")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SCALE_FIELD_NUMBER: _ClassVar[int]
    STANDING_SCALE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_COUNT_FIELD_NUMBER: _ClassVar[int]
    READY_FRONTEND_COUNT_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    model: str
    description: str
    default_scale: float
    standing_scale: float
    sha256: str
    file_bytes: int
    architecture: str
    base_model: str
    title: str
    rank: int
    size_bytes: int
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    etag: str
    engines: _containers.RepeatedCompositeFieldContainer[AdapterReport]
    frontend_count: int
    ready_frontend_count: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., description: _Optional[str] = ..., default_scale: _Optional[float] = ..., standing_scale: _Optional[float] = ..., sha256: _Optional[str] = ..., file_bytes: _Optional[int] = ..., architecture: _Optional[str] = ..., base_model: _Optional[str] = ..., title: _Optional[str] = ..., rank: _Optional[int] = ..., size_bytes: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., etag: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[AdapterReport, _Mapping]]] = ..., frontend_count: _Optional[int] = ..., ready_frontend_count: _Optional[int] = ...) -> None: ...

class AdapterHeader(_message.Message):
    __slots__ = ("name", "model", "description", "default_scale", "file_id", "path", "sha256", "replace", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SCALE_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    description: str
    default_scale: float
    file_id: str
    path: str
    sha256: str
    replace: bool
    request_id: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., description: _Optional[str] = ..., default_scale: _Optional[float] = ..., file_id: _Optional[str] = ..., path: _Optional[str] = ..., sha256: _Optional[str] = ..., replace: _Optional[bool] = ..., request_id: _Optional[str] = ...) -> None: ...

class AdapterReport(_message.Message):
    __slots__ = ("adapter_id", "project", "frontend", "address", "model", "state", "reason", "problem", "sha256", "report_time")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[AdapterReport.State]
        STATE_FETCHING: _ClassVar[AdapterReport.State]
        STATE_LOADING: _ClassVar[AdapterReport.State]
        STATE_READY: _ClassVar[AdapterReport.State]
        STATE_FAILED: _ClassVar[AdapterReport.State]
    STATE_UNSPECIFIED: AdapterReport.State
    STATE_FETCHING: AdapterReport.State
    STATE_LOADING: AdapterReport.State
    STATE_READY: AdapterReport.State
    STATE_FAILED: AdapterReport.State
    ADAPTER_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REPORT_TIME_FIELD_NUMBER: _ClassVar[int]
    adapter_id: str
    project: str
    frontend: str
    address: str
    model: str
    state: AdapterReport.State
    reason: str
    problem: str
    sha256: str
    report_time: _timestamp_pb2.Timestamp
    def __init__(self, adapter_id: _Optional[str] = ..., project: _Optional[str] = ..., frontend: _Optional[str] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., state: _Optional[_Union[AdapterReport.State, str]] = ..., reason: _Optional[str] = ..., problem: _Optional[str] = ..., sha256: _Optional[str] = ..., report_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DesiredAdapter(_message.Message):
    __slots__ = ("id", "project", "name", "model", "sha256", "file_bytes", "default_scale", "standing_scale", "attempt")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SCALE_FIELD_NUMBER: _ClassVar[int]
    STANDING_SCALE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    id: str
    project: str
    name: str
    model: str
    sha256: str
    file_bytes: int
    default_scale: float
    standing_scale: float
    attempt: int
    def __init__(self, id: _Optional[str] = ..., project: _Optional[str] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., sha256: _Optional[str] = ..., file_bytes: _Optional[int] = ..., default_scale: _Optional[float] = ..., standing_scale: _Optional[float] = ..., attempt: _Optional[int] = ...) -> None: ...
