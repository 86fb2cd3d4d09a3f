import datetime

from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UsageCounts(_message.Message):
    __slots__ = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    def __init__(self, requests: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class UsageDelta(_message.Message):
    __slots__ = ("project", "model", "hour", "counts", "key")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HOUR_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    project: str
    model: str
    hour: _timestamp_pb2.Timestamp
    counts: UsageCounts
    key: str
    def __init__(self, project: _Optional[str] = ..., model: _Optional[str] = ..., hour: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., counts: _Optional[_Union[UsageCounts, _Mapping]] = ..., key: _Optional[str] = ...) -> None: ...

class ReportUsageRequest(_message.Message):
    __slots__ = ("report_id", "deltas")
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    report_id: str
    deltas: _containers.RepeatedCompositeFieldContainer[UsageDelta]
    def __init__(self, report_id: _Optional[str] = ..., deltas: _Optional[_Iterable[_Union[UsageDelta, _Mapping]]] = ...) -> None: ...

class ReportUsageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UsageSum(_message.Message):
    __slots__ = ("project", "model", "start_time", "counts", "cost_nanos")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    COST_NANOS_FIELD_NUMBER: _ClassVar[int]
    project: str
    model: str
    start_time: _timestamp_pb2.Timestamp
    counts: UsageCounts
    cost_nanos: int
    def __init__(self, project: _Optional[str] = ..., model: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., counts: _Optional[_Union[UsageCounts, _Mapping]] = ..., cost_nanos: _Optional[int] = ...) -> None: ...

class ListUsageRequest(_message.Message):
    __slots__ = ("project", "model", "start_time", "end_time", "period", "page_size", "page_token", "key")
    class Period(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PERIOD_UNSPECIFIED: _ClassVar[ListUsageRequest.Period]
        PERIOD_DAY: _ClassVar[ListUsageRequest.Period]
        PERIOD_HOUR: _ClassVar[ListUsageRequest.Period]
    PERIOD_UNSPECIFIED: ListUsageRequest.Period
    PERIOD_DAY: ListUsageRequest.Period
    PERIOD_HOUR: ListUsageRequest.Period
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    project: str
    model: str
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    period: ListUsageRequest.Period
    page_size: int
    page_token: str
    key: str
    def __init__(self, project: _Optional[str] = ..., model: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., period: _Optional[_Union[ListUsageRequest.Period, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class ListUsageResponse(_message.Message):
    __slots__ = ("sums", "next_page_token")
    SUMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sums: _containers.RepeatedCompositeFieldContainer[UsageSum]
    next_page_token: str
    def __init__(self, sums: _Optional[_Iterable[_Union[UsageSum, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
