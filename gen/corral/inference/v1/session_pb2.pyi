import datetime

from corral.inference.v1 import generation_pb2 as _generation_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Session(_message.Message):
    __slots__ = ("session_id", "name", "project", "model", "end_time", "num_turns", "num_divergences", "prompt_tokens", "cached_tokens", "completion_tokens", "turns")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    NUM_TURNS_FIELD_NUMBER: _ClassVar[int]
    NUM_DIVERGENCES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    name: str
    project: str
    model: str
    end_time: _timestamp_pb2.Timestamp
    num_turns: int
    num_divergences: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    turns: _containers.RepeatedCompositeFieldContainer[SessionTurn]
    def __init__(self, session_id: _Optional[str] = ..., name: _Optional[str] = ..., project: _Optional[str] = ..., model: _Optional[str] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., num_turns: _Optional[int] = ..., num_divergences: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., turns: _Optional[_Iterable[_Union[SessionTurn, _Mapping]]] = ...) -> None: ...

class SessionTurn(_message.Message):
    __slots__ = ("request_id", "label", "end_time", "usage", "timings", "finish_reason", "error_reason", "replica")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    label: str
    end_time: _timestamp_pb2.Timestamp
    usage: _generation_pb2.Usage
    timings: _generation_pb2.Timings
    finish_reason: _generation_pb2.FinishReason
    error_reason: str
    replica: str
    def __init__(self, request_id: _Optional[str] = ..., label: _Optional[str] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[_generation_pb2.Timings, _Mapping]] = ..., finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., error_reason: _Optional[str] = ..., replica: _Optional[str] = ...) -> None: ...
