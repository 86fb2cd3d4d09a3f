import datetime

from corral.control.v1 import item_pb2 as _item_pb2
from corral.control.v1 import message_pb2 as _message_pb2
from corral.control.v1 import run_pb2 as _run_pb2
from corral.control.v1 import thread_pb2 as _thread_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunEvent(_message.Message):
    __slots__ = ("thread_created", "run_changed", "step_changed", "message_changed", "message_delta", "call_delta", "reasoning_delta")
    THREAD_CREATED_FIELD_NUMBER: _ClassVar[int]
    RUN_CHANGED_FIELD_NUMBER: _ClassVar[int]
    STEP_CHANGED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DELTA_FIELD_NUMBER: _ClassVar[int]
    CALL_DELTA_FIELD_NUMBER: _ClassVar[int]
    REASONING_DELTA_FIELD_NUMBER: _ClassVar[int]
    thread_created: _thread_pb2.Thread
    run_changed: RunChanged
    step_changed: StepChanged
    message_changed: MessageChanged
    message_delta: MessageDelta
    call_delta: CallDelta
    reasoning_delta: ReasoningDelta
    def __init__(self, thread_created: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ..., run_changed: _Optional[_Union[RunChanged, _Mapping]] = ..., step_changed: _Optional[_Union[StepChanged, _Mapping]] = ..., message_changed: _Optional[_Union[MessageChanged, _Mapping]] = ..., message_delta: _Optional[_Union[MessageDelta, _Mapping]] = ..., call_delta: _Optional[_Union[CallDelta, _Mapping]] = ..., reasoning_delta: _Optional[_Union[ReasoningDelta, _Mapping]] = ...) -> None: ...

class RunChanged(_message.Message):
    __slots__ = ("what", "run")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    what: str
    run: _run_pb2.Run
    def __init__(self, what: _Optional[str] = ..., run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class StepChanged(_message.Message):
    __slots__ = ("what", "step")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    what: str
    step: _run_pb2.RunStep
    def __init__(self, what: _Optional[str] = ..., step: _Optional[_Union[_run_pb2.RunStep, _Mapping]] = ...) -> None: ...

class MessageChanged(_message.Message):
    __slots__ = ("what", "message")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    what: str
    message: _message_pb2.Message
    def __init__(self, what: _Optional[str] = ..., message: _Optional[_Union[_message_pb2.Message, _Mapping]] = ...) -> None: ...

class MessageDelta(_message.Message):
    __slots__ = ("message_id", "text", "citations")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    text: str
    citations: _containers.RepeatedCompositeFieldContainer[_item_pb2.FileCitation]
    def __init__(self, message_id: _Optional[str] = ..., text: _Optional[str] = ..., citations: _Optional[_Iterable[_Union[_item_pb2.FileCitation, _Mapping]]] = ...) -> None: ...

class CallDelta(_message.Message):
    __slots__ = ("step_id", "index", "call_id", "name", "arguments_json", "is_hosted", "item_id", "create_time")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    IS_HOSTED_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    step_id: str
    index: int
    call_id: str
    name: str
    arguments_json: str
    is_hosted: bool
    item_id: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, step_id: _Optional[str] = ..., index: _Optional[int] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., is_hosted: _Optional[bool] = ..., item_id: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReasoningDelta(_message.Message):
    __slots__ = ("item_id", "text", "create_time")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    text: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, item_id: _Optional[str] = ..., text: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
