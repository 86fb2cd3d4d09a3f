from corral.options.v1 import limit_pb2 as _limit_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Upstream(_message.Message):
    __slots__ = ("engine", "problem", "sampling", "constraints", "takes_grammars", "max_logprobs", "endpoints", "model", "text_mode", "vector_size", "tokenizer")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    TAKES_GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_MODE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    engine: str
    problem: str
    sampling: _containers.RepeatedScalarFieldContainer[str]
    constraints: _containers.RepeatedScalarFieldContainer[str]
    takes_grammars: bool
    max_logprobs: int
    endpoints: _containers.RepeatedCompositeFieldContainer[UpstreamEndpoint]
    model: str
    text_mode: bool
    vector_size: int
    tokenizer: str
    def __init__(self, engine: _Optional[str] = ..., problem: _Optional[str] = ..., sampling: _Optional[_Iterable[str]] = ..., constraints: _Optional[_Iterable[str]] = ..., takes_grammars: _Optional[bool] = ..., max_logprobs: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[UpstreamEndpoint, _Mapping]]] = ..., model: _Optional[str] = ..., text_mode: _Optional[bool] = ..., vector_size: _Optional[int] = ..., tokenizer: _Optional[str] = ...) -> None: ...

class UpstreamEndpoint(_message.Message):
    __slots__ = ("url", "is_up", "problem", "num_running")
    URL_FIELD_NUMBER: _ClassVar[int]
    IS_UP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    url: str
    is_up: bool
    problem: str
    num_running: int
    def __init__(self, url: _Optional[str] = ..., is_up: _Optional[bool] = ..., problem: _Optional[str] = ..., num_running: _Optional[int] = ...) -> None: ...

class UpstreamSource(_message.Message):
    __slots__ = ("urls", "kind", "model", "concurrency", "context_tokens", "task")
    URLS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    urls: _containers.RepeatedScalarFieldContainer[str]
    kind: str
    model: str
    concurrency: int
    context_tokens: int
    task: str
    def __init__(self, urls: _Optional[_Iterable[str]] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., concurrency: _Optional[int] = ..., context_tokens: _Optional[int] = ..., task: _Optional[str] = ...) -> None: ...
