"""Conversion of vector stores between protos and dataclasses."""

from collections.abc import Mapping, Sequence

from corral.control.v1 import (
    vector_store_file_service_pb2,
    vector_store_pb2,
    vector_store_search_pb2,
    vector_store_service_pb2,
)

from control_svc.base.proto import timestamp
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

_FileState = vector_store_pb2.VectorStoreFile.State
_Comparator = vector_store_search_pb2.AttributeComparison.Comparator
_Junction = vector_store_search_pb2.CompoundFilter.Junction
_MAX_NESTING = 32
"""Deeper filters are refused before they are built; the domain's own limit is lower."""


def store_to_pb(store: VectorStore, clock: Clock) -> vector_store_pb2.VectorStore:
    """A store as callers see it."""
    expires_at = store.expires_at
    return vector_store_pb2.VectorStore(
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


def file_to_pb(file: StoreFile) -> vector_store_pb2.VectorStoreFile:
    """A file in a store as callers see it."""
    is_complete = file.state is FileState.COMPLETED
    return vector_store_pb2.VectorStoreFile(
        file_id=file.file_id,
        vector_store_id=file.store_id,
        state=f"STATE_{file.state.upper()}",
        error=None
        if file.problem is None
        else vector_store_pb2.VectorStoreFileError(
            code=f"CODE_{file.problem.code.upper()}", message=file.problem.message
        ),
        usage_bytes=file.usage_bytes if is_complete else 0,
        chunking=vector_store_pb2.ChunkingStrategy(
            max_chunk_size_tokens=file.chunking.max_tokens,
            chunk_overlap_tokens=file.chunking.overlap_tokens,
        ),
        attributes=attributes_to_pb(file.attributes),
        create_time=timestamp(file.created_at),
        batch_id=file.batch_id or "",
    )


def batch_to_pb(batch: FileBatch) -> vector_store_pb2.VectorStoreFileBatch:
    """A batch as callers see it."""
    return vector_store_pb2.VectorStoreFileBatch(
        id=batch.id,
        vector_store_id=batch.store_id,
        state=f"STATE_{batch.state.upper()}",
        file_counts=_counts_to_pb(batch.counts),
        create_time=timestamp(batch.created_at),
    )


def hit_to_pb(hit: SearchHit) -> vector_store_search_pb2.VectorStoreSearchHit:
    """What was found as callers see it."""
    return vector_store_search_pb2.VectorStoreSearchHit(
        file_id=hit.file_id,
        filename=hit.filename,
        score=hit.score,
        attributes=attributes_to_pb(hit.attributes),
        texts=hit.texts,
    )


def new_store(request: vector_store_service_pb2.CreateVectorStoreRequest) -> NewVectorStore:
    """The store that a caller begins."""
    chunking = _chunking(request)
    return NewVectorStore(
        name=request.name,
        description=request.description,
        files=[NewStoreFile(file_id=each, chunking=chunking) for each in request.file_ids],
        life_days=request.expire_after_days if request.HasField("expire_after_days") else None,
        metadata=dict(request.metadata),
        request_id=request.request_id,
    )


def store_changes(request: vector_store_service_pb2.UpdateVectorStoreRequest) -> StoreChanges:
    """What a caller changes of a store."""
    return StoreChanges(
        name=request.name if request.HasField("name") else None,
        life_days=request.expire_after_days if request.HasField("expire_after_days") else None,
        metadata=dict(request.metadata.pairs) if request.HasField("metadata") else None,
    )


def new_file(
    request: vector_store_file_service_pb2.CreateVectorStoreFileRequest
    | vector_store_file_service_pb2.NewVectorStoreFile,
) -> NewStoreFile:
    """The file that a caller puts into a store."""
    return NewStoreFile(
        file_id=request.file_id,
        chunking=_chunking(request),
        attributes=attributes_of(request.attributes),
    )


def file_state(state: vector_store_pb2.VectorStoreFile.State) -> FileState | None:
    """A state to filter by; None: any. Raises InvalidField."""
    if state == _FileState.STATE_UNSPECIFIED:
        return None
    name = _name(_FileState, state, "state")
    return FileState(name.removeprefix("STATE_").lower())


def ranking_of(ranking: vector_store_search_pb2.SearchRanking) -> Ranking:
    """How to order, with the defaults of what is unset."""
    given = {field.name: value for field, value in ranking.ListFields()}
    return Ranking(**given)


# ---- attributes and filters


def attributes_of(
    attributes: Mapping[str, vector_store_pb2.AttributeValue],
) -> dict[str, AttributeValue]:
    """What a caller attaches. Raises MissingField."""
    return {key: _value_of(f"attributes.{key}", value) for key, value in attributes.items()}


def attributes_to_pb(
    attributes: Mapping[str, AttributeValue],
) -> dict[str, vector_store_pb2.AttributeValue]:
    """What a caller attached."""
    return {key: _value_to_pb(value) for key, value in attributes.items()}


def filter_of(condition: vector_store_search_pb2.AttributeFilter, depth: int = 0) -> Filter:
    """A condition. Raises MissingField or InvalidField."""
    if depth > _MAX_NESTING:
        raise InvalidField(field=FIELD, problem="conditions stand too deep")
    match condition.WhichOneof("condition"):
        case "comparison":
            return _comparison_of(condition.comparison)
        case "compound":
            compound = condition.compound
            name = _name(_Junction, compound.junction, f"{FIELD}.type")
            filters = tuple(filter_of(each, depth + 1) for each in compound.filters)
            return Compound(Junction(name.removeprefix("JUNCTION_").lower()), filters)
    raise MissingField(field=FIELD)


def _comparison_of(comparison: vector_store_search_pb2.AttributeComparison) -> Comparison:
    name = _name(_Comparator, comparison.comparator, f"{FIELD}.type")
    comparator = Comparator(name.removeprefix("COMPARATOR_").lower())
    values = tuple(_value_of(f"{FIELD}.value", value) for value in comparison.values)
    if comparator in (Comparator.IN, Comparator.NIN):
        return Comparison(comparison.key, comparator, values)
    if len(values) != 1:
        raise InvalidField(
            field=f"{FIELD}.value", problem=f"'{comparator}' compares with one value"
        )
    return Comparison(comparison.key, comparator, values[0])


def _value_of(field: str, value: vector_store_pb2.AttributeValue) -> AttributeValue:
    match value.WhichOneof("kind"):
        case "string":
            return value.string
        case "number":
            return value.number
        case "boolean":
            return value.boolean
    raise MissingField(field=field)


def _value_to_pb(value: AttributeValue) -> vector_store_pb2.AttributeValue:
    if isinstance(value, bool):
        return vector_store_pb2.AttributeValue(boolean=value)
    if isinstance(value, str):
        return vector_store_pb2.AttributeValue(string=value)
    return vector_store_pb2.AttributeValue(number=value)


def _name(enum: object, value: int, field: str) -> str:
    """The name of an enum's value that means something. Raises InvalidField."""
    names: Sequence[tuple[str, int]] = enum.items()  # type: ignore[attr-defined]  # an EnumTypeWrapper
    for name, number in names:
        if number == value and value:
            return name
    raise InvalidField(field=field, problem="it is none of the known values")


def _chunking(
    request: vector_store_service_pb2.CreateVectorStoreRequest
    | vector_store_file_service_pb2.CreateVectorStoreFileRequest
    | vector_store_file_service_pb2.NewVectorStoreFile,
) -> Chunking:
    if not request.HasField("chunking"):
        return Chunking()
    wanted = request.chunking
    return Chunking(wanted.max_chunk_size_tokens, wanted.chunk_overlap_tokens)


def _counts_to_pb(counts: FileCounts) -> vector_store_pb2.VectorStoreFileCounts:
    return vector_store_pb2.VectorStoreFileCounts(
        in_progress=counts.in_progress,
        completed=counts.completed,
        failed=counts.failed,
        cancelled=counts.cancelled,
        total=counts.total,
    )
