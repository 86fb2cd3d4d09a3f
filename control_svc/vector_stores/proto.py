"""Conversion of vector stores between protos and dataclasses."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_pb2 as pb
from corral.control.v1 import vector_store_search_pb2 as search_pb
from corral.control.v1 import vector_store_service_pb2 as stores_pb

from control_svc.base.proto import changed_fields, timestamp
from control_svc.db.transaction import Clock
from control_svc.vector_stores.filters import (
    FIELD,
    Comparator,
    Comparison,
    Compound,
    Filter,
    Junction,
)
from control_svc.vector_stores.model import (
    AttributeValue,
    Chunking,
    FileBatch,
    FileCounts,
    FileState,
    NewStoreFile,
    NewVectorStore,
    StoreChanges,
    StoreFile,
    VectorStore,
)
from control_svc.vector_stores.search.model import Ranking, SearchHit
from svc_kit.errors import InvalidField, MissingField

_FileState = pb.VectorStoreFile.State
_Comparator = search_pb.AttributeComparison.Comparator
_Junction = search_pb.CompoundFilter.Junction
_MAX_NESTING = 32
"""Limit of the recursion. `filters.MAX_DEPTH` is lower."""


def store_to_pb(store: VectorStore, clock: Clock) -> pb.VectorStore:
    """Convert a store."""
    expires_at = store.expires_at
    return pb.VectorStore(
        id=store.id,
        name=store.name,
        description=store.description,
        state=f"STATE_{store.state(clock()).upper()}",
        file_counts=_counts_to_pb(store.counts),
        usage_bytes=store.usage_bytes,
        expire_after_days=store.life_days,
        expire_time=None if expires_at is None else timestamp(expires_at),
        last_active_time=timestamp(store.active_at),
        metadata=store.metadata,
        create_time=timestamp(store.created_at),
        embedding_model=store.embedding_model,
    )


def file_to_pb(file: StoreFile) -> pb.VectorStoreFile:
    """Convert a file in a store."""
    is_complete = file.state is FileState.COMPLETED
    return pb.VectorStoreFile(
        file_id=file.file_id,
        vector_store_id=file.store_id,
        state=f"STATE_{file.state.upper()}",
        error=None
        if file.problem is None
        else pb.VectorStoreFileError(
            code=f"CODE_{file.problem.code.upper()}", message=file.problem.message
        ),
        usage_bytes=file.usage_bytes if is_complete else 0,
        chunking=pb.ChunkingStrategy(
            max_chunk_size_tokens=file.chunking.max_tokens,
            chunk_overlap_tokens=file.chunking.overlap_tokens,
        ),
        attributes=attributes_to_pb(file.attributes),
        create_time=timestamp(file.created_at),
        batch_id=file.batch_id or "",
    )


def batch_to_pb(batch: FileBatch) -> pb.VectorStoreFileBatch:
    """Convert a file batch."""
    return pb.VectorStoreFileBatch(
        id=batch.id,
        vector_store_id=batch.store_id,
        state=f"STATE_{batch.state.upper()}",
        file_counts=_counts_to_pb(batch.counts),
        create_time=timestamp(batch.created_at),
    )


def hit_to_pb(hit: SearchHit) -> search_pb.VectorStoreSearchHit:
    """Convert a search hit."""
    return search_pb.VectorStoreSearchHit(
        file_id=hit.file_id,
        filename=hit.filename,
        score=hit.score,
        attributes=attributes_to_pb(hit.attributes),
        texts=hit.texts,
    )


def new_store(request: stores_pb.CreateVectorStoreRequest) -> NewVectorStore:
    """Convert a request for a new store."""
    chunking = _chunking(request)
    return NewVectorStore(
        name=request.name,
        description=request.description,
        files=[NewStoreFile(file_id=file_id, chunking=chunking) for file_id in request.file_ids],
        life_days=request.expire_after_days if request.HasField("expire_after_days") else None,
        metadata=dict(request.metadata),
        request_id=request.request_id,
    )


def store_changes(request: stores_pb.UpdateVectorStoreRequest) -> StoreChanges:
    """Convert an update of a store. Raises InvalidField for a wrong mask."""
    changed = changed_fields(request, ("name", "expire_after_days", "metadata"))
    return StoreChanges(
        name=request.name if "name" in changed else None,
        life_days=request.expire_after_days if "expire_after_days" in changed else None,
        metadata=dict(request.metadata.pairs) if "metadata" in changed else None,
    )


def new_file(
    request: files_pb.CreateVectorStoreFileRequest | files_pb.NewVectorStoreFile,
) -> NewStoreFile:
    """Convert a request to add a file."""
    return NewStoreFile(
        file_id=request.file_id,
        chunking=_chunking(request),
        attributes=read_attributes(request.attributes),
    )


def file_state(state: pb.VectorStoreFile.State) -> FileState | None:
    """Convert a state to filter by; None if it is unset. Raises InvalidField."""
    if state == _FileState.STATE_UNSPECIFIED:
        return None
    name = _enum_name(_FileState, state, "state")
    return FileState(name.removeprefix("STATE_").lower())


def read_ranking(ranking: search_pb.SearchRanking) -> Ranking:
    """Convert ranking options. Unset fields get their defaults."""
    return Ranking(**{field.name: value for field, value in ranking.ListFields()})


# ---- attributes and filters


def read_attributes(
    attributes: Mapping[str, pb.AttributeValue],
) -> dict[str, AttributeValue]:
    """Convert attributes of a request. Raises MissingField."""
    return {key: _read_value(f"attributes.{key}", value) for key, value in attributes.items()}


def attributes_to_pb(
    attributes: Mapping[str, AttributeValue],
) -> dict[str, pb.AttributeValue]:
    """Convert attributes."""
    return {key: _value_to_pb(value) for key, value in attributes.items()}


def read_filter(condition: search_pb.AttributeFilter, depth: int = 0) -> Filter:
    """Convert a filter. Raises MissingField or InvalidField."""
    if depth > _MAX_NESTING:
        raise InvalidField(field=FIELD, problem="conditions are nested too deeply")
    match condition.WhichOneof("condition"):
        case "comparison":
            return _read_comparison(condition.comparison)
        case "compound":
            compound = condition.compound
            name = _enum_name(_Junction, compound.junction, f"{FIELD}.type")
            filters = tuple(read_filter(inner, depth + 1) for inner in compound.filters)
            return Compound(Junction(name.removeprefix("JUNCTION_").lower()), filters)
    raise MissingField(field=FIELD)


def _read_comparison(comparison: search_pb.AttributeComparison) -> Comparison:
    name = _enum_name(_Comparator, comparison.comparator, f"{FIELD}.type")
    comparator = Comparator(name.removeprefix("COMPARATOR_").lower())
    values = tuple(_read_value(f"{FIELD}.value", value) for value in comparison.values)
    if comparator in (Comparator.IN, Comparator.NIN):
        return Comparison(comparison.key, comparator, values)
    if len(values) != 1:
        raise InvalidField(
            field=f"{FIELD}.value", problem=f"'{comparator}' compares with one value"
        )
    return Comparison(comparison.key, comparator, values[0])


def _read_value(field: str, value: pb.AttributeValue) -> AttributeValue:
    kind = value.WhichOneof("kind")
    if kind is None:
        raise MissingField(field=field)
    read: AttributeValue = getattr(value, kind)
    return read


def _value_to_pb(value: AttributeValue) -> pb.AttributeValue:
    if isinstance(value, bool):
        return pb.AttributeValue(boolean=value)
    if isinstance(value, str):
        return pb.AttributeValue(string=value)
    return pb.AttributeValue(number=value)


def _enum_name(enum: object, value: int, field: str) -> str:
    """The name of a specified and known enum value. Raises InvalidField."""
    names: Sequence[tuple[str, int]] = enum.items()  # type: ignore[attr-defined]  # an EnumTypeWrapper
    for name, number in names:
        if number == value and value:
            return name
    raise InvalidField(field=field, problem="it is not a known value")


def _chunking(
    request: stores_pb.CreateVectorStoreRequest
    | files_pb.CreateVectorStoreFileRequest
    | files_pb.NewVectorStoreFile,
) -> Chunking:
    if not request.HasField("chunking"):
        return Chunking()
    chunking = request.chunking
    return Chunking(chunking.max_chunk_size_tokens, chunking.chunk_overlap_tokens)


def _counts_to_pb(counts: FileCounts) -> pb.VectorStoreFileCounts:
    return pb.VectorStoreFileCounts(**asdict(counts), total=counts.total)
