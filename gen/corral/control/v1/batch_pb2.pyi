import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("id", "endpoint", "input_file_id", "completion_window", "state", "model", "errors", "request_counts", "usage", "output_file_id", "error_file_id", "metadata", "create_time", "expire_time", "in_progress_time", "finalizing_time", "completed_time", "failed_time", "expired_time", "cancelling_time", "cancelled_time", "output_ttl")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Batch.State]
        STATE_VALIDATING: _ClassVar[Batch.State]
        STATE_FAILED: _ClassVar[Batch.State]
        STATE_IN_PROGRESS: _ClassVar[Batch.State]
        STATE_FINALIZING: _ClassVar[Batch.State]
        STATE_COMPLETED: _ClassVar[Batch.State]
        STATE_EXPIRED: _ClassVar[Batch.State]
        STATE_CANCELLING: _ClassVar[Batch.State]
        STATE_CANCELLED: _ClassVar[Batch.State]
    STATE_UNSPECIFIED: Batch.State
    STATE_VALIDATING: Batch.State
    STATE_FAILED: Batch.State
    STATE_IN_PROGRESS: Batch.State
    STATE_FINALIZING: Batch.State
    STATE_COMPLETED: Batch.State
    STATE_EXPIRED: Batch.State
    STATE_CANCELLING: Batch.State
    STATE_CANCELLED: Batch.State
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_WINDOW_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_COUNTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_TIME_FIELD_NUMBER: _ClassVar[int]
    FINALIZING_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_TIME_FIELD_NUMBER: _ClassVar[int]
    FAILED_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_TIME_FIELD_NUMBER: _ClassVar[int]
    CANCELLING_TIME_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TIME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TTL_FIELD_NUMBER: _ClassVar[int]
    id: str
    endpoint: str
    input_file_id: str
    completion_window: _duration_pb2.Duration
    state: Batch.State
    model: str
    errors: _containers.RepeatedCompositeFieldContainer[BatchError]
    request_counts: BatchRequestCounts
    usage: BatchUsage
    output_file_id: str
    error_file_id: str
    metadata: _containers.ScalarMap[str, str]
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    in_progress_time: _timestamp_pb2.Timestamp
    finalizing_time: _timestamp_pb2.Timestamp
    completed_time: _timestamp_pb2.Timestamp
    failed_time: _timestamp_pb2.Timestamp
    expired_time: _timestamp_pb2.Timestamp
    cancelling_time: _timestamp_pb2.Timestamp
    cancelled_time: _timestamp_pb2.Timestamp
    output_ttl: _duration_pb2.Duration
    def __init__(self, id: _Optional[str] = ..., endpoint: _Optional[str] = ..., input_file_id: _Optional[str] = ..., completion_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., state: _Optional[_Union[Batch.State, str]] = ..., model: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[BatchError, _Mapping]]] = ..., request_counts: _Optional[_Union[BatchRequestCounts, _Mapping]] = ..., usage: _Optional[_Union[BatchUsage, _Mapping]] = ..., output_file_id: _Optional[str] = ..., error_file_id: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., in_progress_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finalizing_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completed_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failed_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expired_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancelling_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancelled_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., output_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BatchError(_message.Message):
    __slots__ = ("code", "message", "param", "line")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    line: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., line: _Optional[int] = ...) -> None: ...

class BatchRequestCounts(_message.Message):
    __slots__ = ("total", "completed", "failed", "not_run")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    NOT_RUN_FIELD_NUMBER: _ClassVar[int]
    total: int
    completed: int
    failed: int
    not_run: int
    def __init__(self, total: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., not_run: _Optional[int] = ...) -> None: ...

class BatchUsage(_message.Message):
    __slots__ = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...
