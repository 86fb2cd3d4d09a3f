import datetime

from corral.auth.v1 import method_options_pb2 as _method_options_pb2
from corral.control.v1 import limit_service_pb2 as _limit_service_pb2
from corral.inference.v1 import generation_pb2 as _generation_pb2
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

class KeyScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_SCOPE_UNSPECIFIED: _ClassVar[KeyScope]
    KEY_SCOPE_INFERENCE: _ClassVar[KeyScope]
    KEY_SCOPE_ADMIN: _ClassVar[KeyScope]
    KEY_SCOPE_GENERATE: _ClassVar[KeyScope]
    KEY_SCOPE_FILES: _ClassVar[KeyScope]
    KEY_SCOPE_READ: _ClassVar[KeyScope]
    KEY_SCOPE_ADMIN_READ: _ClassVar[KeyScope]
    KEY_SCOPE_FILES_READ: _ClassVar[KeyScope]
KEY_SCOPE_UNSPECIFIED: KeyScope
KEY_SCOPE_INFERENCE: KeyScope
KEY_SCOPE_ADMIN: KeyScope
KEY_SCOPE_GENERATE: KeyScope
KEY_SCOPE_FILES: KeyScope
KEY_SCOPE_READ: KeyScope
KEY_SCOPE_ADMIN_READ: KeyScope
KEY_SCOPE_FILES_READ: KeyScope

class ApiKey(_message.Message):
    __slots__ = ("id", "project", "name", "prefix", "scopes", "priority", "create_time", "expire_time", "last_use_time", "revoke_time", "models", "networks", "rotate_time", "old_expire_time")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_USE_TIME_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TIME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NETWORKS_FIELD_NUMBER: _ClassVar[int]
    ROTATE_TIME_FIELD_NUMBER: _ClassVar[int]
    OLD_EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    project: str
    name: str
    prefix: str
    scopes: _containers.RepeatedScalarFieldContainer[KeyScope]
    priority: _generation_pb2.Priority
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    last_use_time: _timestamp_pb2.Timestamp
    revoke_time: _timestamp_pb2.Timestamp
    models: _containers.RepeatedScalarFieldContainer[str]
    networks: _containers.RepeatedScalarFieldContainer[str]
    rotate_time: _timestamp_pb2.Timestamp
    old_expire_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., project: _Optional[str] = ..., name: _Optional[str] = ..., prefix: _Optional[str] = ..., scopes: _Optional[_Iterable[_Union[KeyScope, str]]] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_use_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoke_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., models: _Optional[_Iterable[str]] = ..., networks: _Optional[_Iterable[str]] = ..., rotate_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., old_expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("project_id", "name", "scopes", "priority", "expire_time", "request_id", "models", "networks", "allow_unknown", "limits")
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NETWORKS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    project_id: str
    name: str
    scopes: _containers.RepeatedScalarFieldContainer[KeyScope]
    priority: _generation_pb2.Priority
    expire_time: _timestamp_pb2.Timestamp
    request_id: str
    models: _containers.RepeatedScalarFieldContainer[str]
    networks: _containers.RepeatedScalarFieldContainer[str]
    allow_unknown: bool
    limits: _containers.RepeatedCompositeFieldContainer[_limit_service_pb2.Limit]
    def __init__(self, project_id: _Optional[str] = ..., name: _Optional[str] = ..., scopes: _Optional[_Iterable[_Union[KeyScope, str]]] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., request_id: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., networks: _Optional[_Iterable[str]] = ..., allow_unknown: _Optional[bool] = ..., limits: _Optional[_Iterable[_Union[_limit_service_pb2.Limit, _Mapping]]] = ...) -> None: ...

class CreateKeyResponse(_message.Message):
    __slots__ = ("key", "secret", "serves_keyless_callers")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SERVES_KEYLESS_CALLERS_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    secret: str
    serves_keyless_callers: bool
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ..., secret: _Optional[str] = ..., serves_keyless_callers: _Optional[bool] = ...) -> None: ...

class GetKeyRequest(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    def __init__(self, key_id: _Optional[str] = ...) -> None: ...

class GetKeyResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "project_id", "show_revoked")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROJECT_ID_FIELD_NUMBER: _ClassVar[int]
    SHOW_REVOKED_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    project_id: str
    show_revoked: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., project_id: _Optional[str] = ..., show_revoked: _Optional[bool] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "next_page_token")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ApiKey]
    next_page_token: str
    def __init__(self, keys: _Optional[_Iterable[_Union[ApiKey, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    def __init__(self, key_id: _Optional[str] = ...) -> None: ...

class RevokeKeyResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ...) -> None: ...

class RotateKeyRequest(_message.Message):
    __slots__ = ("key_id", "overlap", "expire_time", "request_id")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    overlap: _duration_pb2.Duration
    expire_time: _timestamp_pb2.Timestamp
    request_id: str
    def __init__(self, key_id: _Optional[str] = ..., overlap: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class RotateKeyResponse(_message.Message):
    __slots__ = ("key", "secret")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key: ApiKey
    secret: str
    def __init__(self, key: _Optional[_Union[ApiKey, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class VerifyKeyRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    def __init__(self, sha256: _Optional[str] = ...) -> None: ...

class VerifyKeyResponse(_message.Message):
    __slots__ = ("verdict", "key")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VERDICT_UNSPECIFIED: _ClassVar[VerifyKeyResponse.Verdict]
        VERDICT_VALID: _ClassVar[VerifyKeyResponse.Verdict]
        VERDICT_UNKNOWN: _ClassVar[VerifyKeyResponse.Verdict]
        VERDICT_EXPIRED: _ClassVar[VerifyKeyResponse.Verdict]
        VERDICT_REVOKED: _ClassVar[VerifyKeyResponse.Verdict]
        VERDICT_PROJECT_ARCHIVED: _ClassVar[VerifyKeyResponse.Verdict]
    VERDICT_UNSPECIFIED: VerifyKeyResponse.Verdict
    VERDICT_VALID: VerifyKeyResponse.Verdict
    VERDICT_UNKNOWN: VerifyKeyResponse.Verdict
    VERDICT_EXPIRED: VerifyKeyResponse.Verdict
    VERDICT_REVOKED: VerifyKeyResponse.Verdict
    VERDICT_PROJECT_ARCHIVED: VerifyKeyResponse.Verdict
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    verdict: VerifyKeyResponse.Verdict
    key: ApiKey
    def __init__(self, verdict: _Optional[_Union[VerifyKeyResponse.Verdict, str]] = ..., key: _Optional[_Union[ApiKey, _Mapping]] = ...) -> None: ...
