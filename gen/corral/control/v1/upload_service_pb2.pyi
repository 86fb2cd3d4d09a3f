import datetime

from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import file_pb2 as _file_pb2
from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Upload(_message.Message):
    __slots__ = ("id", "filename", "purpose", "size_bytes", "mime_type", "state", "create_time", "expire_time", "file")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Upload.State]
        STATE_PENDING: _ClassVar[Upload.State]
        STATE_COMPLETED: _ClassVar[Upload.State]
        STATE_CANCELLED: _ClassVar[Upload.State]
        STATE_EXPIRED: _ClassVar[Upload.State]
    STATE_UNSPECIFIED: Upload.State
    STATE_PENDING: Upload.State
    STATE_COMPLETED: Upload.State
    STATE_CANCELLED: Upload.State
    STATE_EXPIRED: Upload.State
    ID_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    id: str
    filename: str
    purpose: _file_pb2.FilePurpose
    size_bytes: int
    mime_type: str
    state: Upload.State
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    file: _file_pb2.File
    def __init__(self, id: _Optional[str] = ..., filename: _Optional[str] = ..., purpose: _Optional[_Union[_file_pb2.FilePurpose, str]] = ..., size_bytes: _Optional[int] = ..., mime_type: _Optional[str] = ..., state: _Optional[_Union[Upload.State, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., file: _Optional[_Union[_file_pb2.File, _Mapping]] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("id", "upload_id", "size_bytes", "create_time")
    ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    upload_id: str
    size_bytes: int
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., upload_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateUploadRequest(_message.Message):
    __slots__ = ("filename", "purpose", "size_bytes", "mime_type", "ttl", "request_id")
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    filename: str
    purpose: _file_pb2.FilePurpose
    size_bytes: int
    mime_type: str
    ttl: _duration_pb2.Duration
    request_id: str
    def __init__(self, filename: _Optional[str] = ..., purpose: _Optional[_Union[_file_pb2.FilePurpose, str]] = ..., size_bytes: _Optional[int] = ..., mime_type: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class GetUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...

class AddUploadPartRequest(_message.Message):
    __slots__ = ("upload_id", "chunk")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    chunk: bytes
    def __init__(self, upload_id: _Optional[str] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class AddUploadPartResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: UploadPart
    def __init__(self, part: _Optional[_Union[UploadPart, _Mapping]] = ...) -> None: ...

class CompleteUploadRequest(_message.Message):
    __slots__ = ("upload_id", "part_ids", "md5")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    PART_IDS_FIELD_NUMBER: _ClassVar[int]
    MD5_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    part_ids: _containers.RepeatedScalarFieldContainer[str]
    md5: str
    def __init__(self, upload_id: _Optional[str] = ..., part_ids: _Optional[_Iterable[str]] = ..., md5: _Optional[str] = ...) -> None: ...

class CompleteUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...

class CancelUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class CancelUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...
