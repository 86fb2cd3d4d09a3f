import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VectorStore(_message.Message):
    __slots__ = ("id", "name", "description", "state", "file_counts", "usage_bytes", "expire_after_days", "expire_time", "last_active_time", "metadata", "create_time", "embedding_model")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[VectorStore.State]
        STATE_EXPIRED: _ClassVar[VectorStore.State]
        STATE_IN_PROGRESS: _ClassVar[VectorStore.State]
        STATE_COMPLETED: _ClassVar[VectorStore.State]
    STATE_UNSPECIFIED: VectorStore.State
    STATE_EXPIRED: VectorStore.State
    STATE_IN_PROGRESS: VectorStore.State
    STATE_COMPLETED: VectorStore.State
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_DAYS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_ACTIVE_TIME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_MODEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    description: str
    state: VectorStore.State
    file_counts: VectorStoreFileCounts
    usage_bytes: int
    expire_after_days: int
    expire_time: _timestamp_pb2.Timestamp
    last_active_time: _timestamp_pb2.Timestamp
    metadata: _containers.ScalarMap[str, str]
    create_time: _timestamp_pb2.Timestamp
    embedding_model: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., description: _Optional[str] = ..., state: _Optional[_Union[VectorStore.State, str]] = ..., file_counts: _Optional[_Union[VectorStoreFileCounts, _Mapping]] = ..., usage_bytes: _Optional[int] = ..., expire_after_days: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_active_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., embedding_model: _Optional[str] = ...) -> None: ...

class VectorStoreFileCounts(_message.Message):
    __slots__ = ("in_progress", "completed", "failed", "cancelled", "total")
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int
    def __init__(self, in_progress: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class VectorStoreFile(_message.Message):
    __slots__ = ("file_id", "vector_store_id", "state", "error", "usage_bytes", "chunking", "attributes", "create_time", "batch_id")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[VectorStoreFile.State]
        STATE_IN_PROGRESS: _ClassVar[VectorStoreFile.State]
        STATE_COMPLETED: _ClassVar[VectorStoreFile.State]
        STATE_CANCELLED: _ClassVar[VectorStoreFile.State]
        STATE_FAILED: _ClassVar[VectorStoreFile.State]
    STATE_UNSPECIFIED: VectorStoreFile.State
    STATE_IN_PROGRESS: VectorStoreFile.State
    STATE_COMPLETED: VectorStoreFile.State
    STATE_CANCELLED: VectorStoreFile.State
    STATE_FAILED: VectorStoreFile.State
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AttributeValue, _Mapping]] = ...) -> None: ...
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    USAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    vector_store_id: str
    state: VectorStoreFile.State
    error: VectorStoreFileError
    usage_bytes: int
    chunking: ChunkingStrategy
    attributes: _containers.MessageMap[str, AttributeValue]
    create_time: _timestamp_pb2.Timestamp
    batch_id: str
    def __init__(self, file_id: _Optional[str] = ..., vector_store_id: _Optional[str] = ..., state: _Optional[_Union[VectorStoreFile.State, str]] = ..., error: _Optional[_Union[VectorStoreFileError, _Mapping]] = ..., usage_bytes: _Optional[int] = ..., chunking: _Optional[_Union[ChunkingStrategy, _Mapping]] = ..., attributes: _Optional[_Mapping[str, AttributeValue]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., batch_id: _Optional[str] = ...) -> None: ...

class VectorStoreFileError(_message.Message):
    __slots__ = ("code", "message")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODE_UNSPECIFIED: _ClassVar[VectorStoreFileError.Code]
        CODE_SERVER_ERROR: _ClassVar[VectorStoreFileError.Code]
        CODE_UNSUPPORTED_FILE: _ClassVar[VectorStoreFileError.Code]
        CODE_INVALID_FILE: _ClassVar[VectorStoreFileError.Code]
    CODE_UNSPECIFIED: VectorStoreFileError.Code
    CODE_SERVER_ERROR: VectorStoreFileError.Code
    CODE_UNSUPPORTED_FILE: VectorStoreFileError.Code
    CODE_INVALID_FILE: VectorStoreFileError.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: VectorStoreFileError.Code
    message: str
    def __init__(self, code: _Optional[_Union[VectorStoreFileError.Code, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ChunkingStrategy(_message.Message):
    __slots__ = ("max_chunk_size_tokens", "chunk_overlap_tokens")
    MAX_CHUNK_SIZE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_OVERLAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_chunk_size_tokens: int
    chunk_overlap_tokens: int
    def __init__(self, max_chunk_size_tokens: _Optional[int] = ..., chunk_overlap_tokens: _Optional[int] = ...) -> None: ...

class AttributeValue(_message.Message):
    __slots__ = ("string", "number", "boolean")
    STRING_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    string: str
    number: float
    boolean: bool
    def __init__(self, string: _Optional[str] = ..., number: _Optional[float] = ..., boolean: _Optional[bool] = ...) -> None: ...

class VectorStoreFileBatch(_message.Message):
    __slots__ = ("id", "vector_store_id", "state", "file_counts", "create_time")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[VectorStoreFileBatch.State]
        STATE_IN_PROGRESS: _ClassVar[VectorStoreFileBatch.State]
        STATE_COMPLETED: _ClassVar[VectorStoreFileBatch.State]
        STATE_CANCELLED: _ClassVar[VectorStoreFileBatch.State]
        STATE_FAILED: _ClassVar[VectorStoreFileBatch.State]
    STATE_UNSPECIFIED: VectorStoreFileBatch.State
    STATE_IN_PROGRESS: VectorStoreFileBatch.State
    STATE_COMPLETED: VectorStoreFileBatch.State
    STATE_CANCELLED: VectorStoreFileBatch.State
    STATE_FAILED: VectorStoreFileBatch.State
    ID_FIELD_NUMBER: _ClassVar[int]
    VECTOR_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    vector_store_id: str
    state: VectorStoreFileBatch.State
    file_counts: VectorStoreFileCounts
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., vector_store_id: _Optional[str] = ..., state: _Optional[_Union[VectorStoreFileBatch.State, str]] = ..., file_counts: _Optional[_Union[VectorStoreFileCounts, _Mapping]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
