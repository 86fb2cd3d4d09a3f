import datetime

from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AdapterScale(_message.Message):
    __slots__ = ("adapter", "scale")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    scale: float
    def __init__(self, adapter: _Optional[str] = ..., scale: _Optional[float] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "model", "digest", "generation", "state", "default_scale", "rank", "size_bytes", "num_running", "load_time", "problem", "project", "standing_scale", "replica")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Adapter.State]
        STATE_LOADING: _ClassVar[Adapter.State]
        STATE_READY: _ClassVar[Adapter.State]
        STATE_DRAINING: _ClassVar[Adapter.State]
        STATE_FAILED: _ClassVar[Adapter.State]
    STATE_UNSPECIFIED: Adapter.State
    STATE_LOADING: Adapter.State
    STATE_READY: Adapter.State
    STATE_DRAINING: Adapter.State
    STATE_FAILED: Adapter.State
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SCALE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    STANDING_SCALE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    digest: str
    generation: int
    state: Adapter.State
    default_scale: float
    rank: int
    size_bytes: int
    num_running: int
    load_time: _timestamp_pb2.Timestamp
    problem: str
    project: str
    standing_scale: float
    replica: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., digest: _Optional[str] = ..., generation: _Optional[int] = ..., state: _Optional[_Union[Adapter.State, str]] = ..., default_scale: _Optional[float] = ..., rank: _Optional[int] = ..., size_bytes: _Optional[int] = ..., num_running: _Optional[int] = ..., load_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., problem: _Optional[str] = ..., project: _Optional[str] = ..., standing_scale: _Optional[float] = ..., replica: _Optional[str] = ...) -> None: ...
