from corral.control.v1 import vector_store_pb2 as _vector_store_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttributeFilter(_message.Message):
    __slots__ = ("comparison", "compound")
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    COMPOUND_FIELD_NUMBER: _ClassVar[int]
    comparison: AttributeComparison
    compound: CompoundFilter
    def __init__(self, comparison: _Optional[_Union[AttributeComparison, _Mapping]] = ..., compound: _Optional[_Union[CompoundFilter, _Mapping]] = ...) -> None: ...

class AttributeComparison(_message.Message):
    __slots__ = ("key", "comparator", "values")
    class Comparator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMPARATOR_UNSPECIFIED: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_EQ: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_NE: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_GT: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_GTE: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_LT: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_LTE: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_IN: _ClassVar[AttributeComparison.Comparator]
        COMPARATOR_NIN: _ClassVar[AttributeComparison.Comparator]
    COMPARATOR_UNSPECIFIED: AttributeComparison.Comparator
    COMPARATOR_EQ: AttributeComparison.Comparator
    COMPARATOR_NE: AttributeComparison.Comparator
    COMPARATOR_GT: AttributeComparison.Comparator
    COMPARATOR_GTE: AttributeComparison.Comparator
    COMPARATOR_LT: AttributeComparison.Comparator
    COMPARATOR_LTE: AttributeComparison.Comparator
    COMPARATOR_IN: AttributeComparison.Comparator
    COMPARATOR_NIN: AttributeComparison.Comparator
    KEY_FIELD_NUMBER: _ClassVar[int]
    COMPARATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    comparator: AttributeComparison.Comparator
    values: _containers.RepeatedCompositeFieldContainer[_vector_store_pb2.AttributeValue]
    def __init__(self, key: _Optional[str] = ..., comparator: _Optional[_Union[AttributeComparison.Comparator, str]] = ..., values: _Optional[_Iterable[_Union[_vector_store_pb2.AttributeValue, _Mapping]]] = ...) -> None: ...

class CompoundFilter(_message.Message):
    __slots__ = ("junction", "filters")
    class Junction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        JUNCTION_UNSPECIFIED: _ClassVar[CompoundFilter.Junction]
        JUNCTION_AND: _ClassVar[CompoundFilter.Junction]
        JUNCTION_OR: _ClassVar[CompoundFilter.Junction]
    JUNCTION_UNSPECIFIED: CompoundFilter.Junction
    JUNCTION_AND: CompoundFilter.Junction
    JUNCTION_OR: CompoundFilter.Junction
    JUNCTION_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    junction: CompoundFilter.Junction
    filters: _containers.RepeatedCompositeFieldContainer[AttributeFilter]
    def __init__(self, junction: _Optional[_Union[CompoundFilter.Junction, str]] = ..., filters: _Optional[_Iterable[_Union[AttributeFilter, _Mapping]]] = ...) -> None: ...

class SearchRanking(_message.Message):
    __slots__ = ("score_threshold", "vector_weight", "text_weight")
    SCORE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    VECTOR_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TEXT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    score_threshold: float
    vector_weight: float
    text_weight: float
    def __init__(self, score_threshold: _Optional[float] = ..., vector_weight: _Optional[float] = ..., text_weight: _Optional[float] = ...) -> None: ...

class VectorStoreSearchHit(_message.Message):
    __slots__ = ("file_id", "filename", "score", "attributes", "texts")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _vector_store_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_vector_store_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    filename: str
    score: float
    attributes: _containers.MessageMap[str, _vector_store_pb2.AttributeValue]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, file_id: _Optional[str] = ..., filename: _Optional[str] = ..., score: _Optional[float] = ..., attributes: _Optional[_Mapping[str, _vector_store_pb2.AttributeValue]] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...
