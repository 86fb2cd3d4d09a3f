from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RULE_UNSPECIFIED: _ClassVar[Rule]
    RULE_METADATA: _ClassVar[Rule]
RULE_UNSPECIFIED: Rule
RULE_METADATA: Rule
LIMIT_FIELD_NUMBER: _ClassVar[int]
limit: _descriptor.FieldDescriptor
RULE_LIMIT_FIELD_NUMBER: _ClassVar[int]
rule_limit: _descriptor.FieldDescriptor

class Limit(_message.Message):
    __slots__ = ("gt", "gte", "lte", "max_len", "max_bytes", "max_items", "required", "line", "items", "keys", "name", "rule")
    GT_FIELD_NUMBER: _ClassVar[int]
    GTE_FIELD_NUMBER: _ClassVar[int]
    LTE_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    gt: float
    gte: float
    lte: float
    max_len: int
    max_bytes: int
    max_items: int
    required: bool
    line: bool
    items: Limit
    keys: Limit
    name: str
    rule: Rule
    def __init__(self, gt: _Optional[float] = ..., gte: _Optional[float] = ..., lte: _Optional[float] = ..., max_len: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_items: _Optional[int] = ..., required: _Optional[bool] = ..., line: _Optional[bool] = ..., items: _Optional[_Union[Limit, _Mapping]] = ..., keys: _Optional[_Union[Limit, _Mapping]] = ..., name: _Optional[str] = ..., rule: _Optional[_Union[Rule, str]] = ...) -> None: ...
