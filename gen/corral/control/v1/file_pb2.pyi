import datetime

from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FilePurpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILE_PURPOSE_UNSPECIFIED: _ClassVar[FilePurpose]
    FILE_PURPOSE_ASSISTANTS: _ClassVar[FilePurpose]
    FILE_PURPOSE_BATCH: _ClassVar[FilePurpose]
    FILE_PURPOSE_FINE_TUNE: _ClassVar[FilePurpose]
    FILE_PURPOSE_VISION: _ClassVar[FilePurpose]
    FILE_PURPOSE_USER_DATA: _ClassVar[FilePurpose]
    FILE_PURPOSE_EVALS: _ClassVar[FilePurpose]
    FILE_PURPOSE_ASSISTANTS_OUTPUT: _ClassVar[FilePurpose]
    FILE_PURPOSE_BATCH_OUTPUT: _ClassVar[FilePurpose]
    FILE_PURPOSE_FINE_TUNE_RESULTS: _ClassVar[FilePurpose]
FILE_PURPOSE_UNSPECIFIED: FilePurpose
FILE_PURPOSE_ASSISTANTS: FilePurpose
FILE_PURPOSE_BATCH: FilePurpose
FILE_PURPOSE_FINE_TUNE: FilePurpose
FILE_PURPOSE_VISION: FilePurpose
FILE_PURPOSE_USER_DATA: FilePurpose
FILE_PURPOSE_EVALS: FilePurpose
FILE_PURPOSE_ASSISTANTS_OUTPUT: FilePurpose
FILE_PURPOSE_BATCH_OUTPUT: FilePurpose
FILE_PURPOSE_FINE_TUNE_RESULTS: FilePurpose

class File(_message.Message):
    __slots__ = ("id", "filename", "purpose", "size_bytes", "sha256", "create_time", "expire_time")
    ID_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    filename: str
    purpose: FilePurpose
    size_bytes: int
    sha256: str
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., filename: _Optional[str] = ..., purpose: _Optional[_Union[FilePurpose, str]] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FileHeader(_message.Message):
    __slots__ = ("filename", "purpose", "ttl", "size_bytes", "sha256", "request_id")
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    filename: str
    purpose: FilePurpose
    ttl: _duration_pb2.Duration
    size_bytes: int
    sha256: str
    request_id: str
    def __init__(self, filename: _Optional[str] = ..., purpose: _Optional[_Union[FilePurpose, str]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...
