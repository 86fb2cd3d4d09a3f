import datetime

from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Limit(_message.Message):
    __slots__ = ("id", "project", "key", "model", "per", "unit", "amount", "period", "mode", "create_time")
    class Unit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNIT_UNSPECIFIED: _ClassVar[Limit.Unit]
        UNIT_REQUESTS: _ClassVar[Limit.Unit]
        UNIT_TOKENS: _ClassVar[Limit.Unit]
        UNIT_CONCURRENT_REQUESTS: _ClassVar[Limit.Unit]
        UNIT_COST: _ClassVar[Limit.Unit]
    UNIT_UNSPECIFIED: Limit.Unit
    UNIT_REQUESTS: Limit.Unit
    UNIT_TOKENS: Limit.Unit
    UNIT_CONCURRENT_REQUESTS: Limit.Unit
    UNIT_COST: Limit.Unit
    class Period(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PERIOD_UNSPECIFIED: _ClassVar[Limit.Period]
        PERIOD_MINUTE: _ClassVar[Limit.Period]
        PERIOD_DAY: _ClassVar[Limit.Period]
        PERIOD_MONTH: _ClassVar[Limit.Period]
    PERIOD_UNSPECIFIED: Limit.Period
    PERIOD_MINUTE: Limit.Period
    PERIOD_DAY: Limit.Period
    PERIOD_MONTH: Limit.Period
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[Limit.Mode]
        MODE_ENFORCE: _ClassVar[Limit.Mode]
        MODE_SHADOW: _ClassVar[Limit.Mode]
    MODE_UNSPECIFIED: Limit.Mode
    MODE_ENFORCE: Limit.Mode
    MODE_SHADOW: Limit.Mode
    class Subject(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUBJECT_UNSPECIFIED: _ClassVar[Limit.Subject]
        SUBJECT_PROJECT: _ClassVar[Limit.Subject]
        SUBJECT_KEY: _ClassVar[Limit.Subject]
        SUBJECT_MODEL: _ClassVar[Limit.Subject]
    SUBJECT_UNSPECIFIED: Limit.Subject
    SUBJECT_PROJECT: Limit.Subject
    SUBJECT_KEY: Limit.Subject
    SUBJECT_MODEL: Limit.Subject
    ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    project: str
    key: str
    model: str
    per: _containers.RepeatedScalarFieldContainer[Limit.Subject]
    unit: Limit.Unit
    amount: int
    period: Limit.Period
    mode: Limit.Mode
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., project: _Optional[str] = ..., key: _Optional[str] = ..., model: _Optional[str] = ..., per: _Optional[_Iterable[_Union[Limit.Subject, str]]] = ..., unit: _Optional[_Union[Limit.Unit, str]] = ..., amount: _Optional[int] = ..., period: _Optional[_Union[Limit.Period, str]] = ..., mode: _Optional[_Union[Limit.Mode, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateLimitRequest(_message.Message):
    __slots__ = ("limit", "allow_unknown")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    limit: Limit
    allow_unknown: bool
    def __init__(self, limit: _Optional[_Union[Limit, _Mapping]] = ..., allow_unknown: _Optional[bool] = ...) -> None: ...

class CreateLimitResponse(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: Limit
    def __init__(self, limit: _Optional[_Union[Limit, _Mapping]] = ...) -> None: ...

class ListLimitsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLimitsResponse(_message.Message):
    __slots__ = ("limits", "next_page_token")
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    next_page_token: str
    def __init__(self, limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateLimitRequest(_message.Message):
    __slots__ = ("limit", "update_mask")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    limit: Limit
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, limit: _Optional[_Union[Limit, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateLimitResponse(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: Limit
    def __init__(self, limit: _Optional[_Union[Limit, _Mapping]] = ...) -> None: ...

class DeleteLimitRequest(_message.Message):
    __slots__ = ("limit_id",)
    LIMIT_ID_FIELD_NUMBER: _ClassVar[int]
    limit_id: str
    def __init__(self, limit_id: _Optional[str] = ...) -> None: ...

class DeleteLimitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLimitBucketsRequest(_message.Message):
    __slots__ = ("limit_id", "page_size", "page_token")
    LIMIT_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    limit_id: str
    page_size: int
    page_token: str
    def __init__(self, limit_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class LimitBucket(_message.Message):
    __slots__ = ("limit_id", "project", "key", "model", "amount", "used", "held", "remaining", "reset_time")
    LIMIT_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_TIME_FIELD_NUMBER: _ClassVar[int]
    limit_id: str
    project: str
    key: str
    model: str
    amount: int
    used: int
    held: int
    remaining: int
    reset_time: _timestamp_pb2.Timestamp
    def __init__(self, limit_id: _Optional[str] = ..., project: _Optional[str] = ..., key: _Optional[str] = ..., model: _Optional[str] = ..., amount: _Optional[int] = ..., used: _Optional[int] = ..., held: _Optional[int] = ..., remaining: _Optional[int] = ..., reset_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListLimitBucketsResponse(_message.Message):
    __slots__ = ("buckets", "next_page_token")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedCompositeFieldContainer[LimitBucket]
    next_page_token: str
    def __init__(self, buckets: _Optional[_Iterable[_Union[LimitBucket, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class LimitShareRequest(_message.Message):
    __slots__ = ("limit_id", "project", "key", "model", "held", "returned", "required", "desired", "used")
    LIMIT_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    limit_id: str
    project: str
    key: str
    model: str
    held: int
    returned: int
    required: int
    desired: int
    used: int
    def __init__(self, limit_id: _Optional[str] = ..., project: _Optional[str] = ..., key: _Optional[str] = ..., model: _Optional[str] = ..., held: _Optional[int] = ..., returned: _Optional[int] = ..., required: _Optional[int] = ..., desired: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class LeaseLimitsRequest(_message.Message):
    __slots__ = ("holder", "shares", "number")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    holder: str
    shares: _containers.RepeatedCompositeFieldContainer[LimitShareRequest]
    number: int
    def __init__(self, holder: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[LimitShareRequest, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class LimitShare(_message.Message):
    __slots__ = ("granted", "remaining", "num_holders", "reset_time")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_HOLDERS_FIELD_NUMBER: _ClassVar[int]
    RESET_TIME_FIELD_NUMBER: _ClassVar[int]
    granted: int
    remaining: int
    num_holders: int
    reset_time: _timestamp_pb2.Timestamp
    def __init__(self, granted: _Optional[int] = ..., remaining: _Optional[int] = ..., num_holders: _Optional[int] = ..., reset_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Price(_message.Message):
    __slots__ = ("model", "prompt_nanos", "cached_nanos", "completion_nanos")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NANOS_FIELD_NUMBER: _ClassVar[int]
    CACHED_NANOS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_NANOS_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt_nanos: int
    cached_nanos: int
    completion_nanos: int
    def __init__(self, model: _Optional[str] = ..., prompt_nanos: _Optional[int] = ..., cached_nanos: _Optional[int] = ..., completion_nanos: _Optional[int] = ...) -> None: ...

class LeaseLimitsResponse(_message.Message):
    __slots__ = ("limits", "shares", "prices", "lease")
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    PRICES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    shares: _containers.RepeatedCompositeFieldContainer[LimitShare]
    prices: _containers.RepeatedCompositeFieldContainer[Price]
    lease: _duration_pb2.Duration
    def __init__(self, limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., shares: _Optional[_Iterable[_Union[LimitShare, _Mapping]]] = ..., prices: _Optional[_Iterable[_Union[Price, _Mapping]]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
