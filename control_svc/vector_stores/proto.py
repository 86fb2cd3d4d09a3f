"""Mappings of vector stores to protos."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from corral.control.v1 import vector_store_file_service_pb2 as files_pb
from corral.control.v1 import vector_store_pb2 as pb
from corral.control.v1 import vector_store_search_pb2 as search_pb
from corral.control.v1 import vector_store_service_pb2 as stores_pb

from control_svc.base.proto import changed_values
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
    FileState,
    NewStoreFile,
    NewVectorStore,
    StoreFile,
    StoreState,
    VectorStore,
)
from control_svc.vector_stores.search.model import Ranking, SearchHit
from svc_kit.errors import InvalidField, MissingField
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, OneofMapper

_MAX_NESTING = 32
"""Limit of the recursion. `filters.MAX_DEPTH` is lower."""
ATTRIBUTE: Final = OneofMapper(
    AttributeValue,
    pb.AttributeValue,
    fields={str: "string", bool: "boolean", float: "number", int: "number"},
)
CHUNKING: Final = MessageMapper(
    Chunking,
    pb.ChunkingStrategy,
    renamed={"max_tokens": "max_chunk_size_tokens", "overlap_tokens": "chunk_overlap_tokens"},
)
FILE_STATE: Final = EnumMapper[FileState](
    FileState, pb.VectorStoreFile.State, only_domain=[FileState.DELETED]
)
STORE: Final = MessageMapper(
    VectorStore,
    pb.VectorStore,
    renamed={
        "life_days": "expire_after_days",
        "active_at": "last_active_time",
        "counts": "file_counts",
    },
    only_domain=["num_chunks", "embedding_digest", "dimensions", "revision"],
    only_message=["state"],
)
_STORE_STATE: Final = EnumMapper[StoreState](StoreState, pb.VectorStore.State)
FILE: Final = MessageMapper(
    StoreFile,
    pb.VectorStoreFile,
    renamed={"store_id": "vector_store_id", "problem": "error"},
    uses=[ATTRIBUTE, CHUNKING, FILE_STATE],
    only_domain=["entry", "num_chunks"],
)
BATCH: Final = MessageMapper(
    FileBatch,
    pb.VectorStoreFileBatch,
    renamed={"store_id": "vector_store_id", "counts": "file_counts"},
    only_domain=["cancelled_at"],
)
HIT: Final = MessageMapper(SearchHit, search_pb.VectorStoreSearchHit, uses=[ATTRIBUTE])
RANKING: Final = MessageMapper(Ranking, search_pb.SearchRanking)
NEW_FILE: Final = MessageMapper(
    NewStoreFile, files_pb.NewVectorStoreFile, uses=[ATTRIBUTE, CHUNKING]
)
NEW_SINGLE_FILE: Final = MessageMapper(
    NewStoreFile,
    files_pb.CreateVectorStoreFileRequest,
    uses=[ATTRIBUTE, CHUNKING],
    only_message=["vector_store_id", "request_id"],
)


class _NewStoreMapper(MessageMapper[NewVectorStore, stores_pb.CreateVectorStoreRequest]):
    """All files of a request are split alike."""

    def from_message(
        self, message: stores_pb.CreateVectorStoreRequest, path: str = "", **extra: Any
    ) -> NewVectorStore:
        has_chunking = message.HasField("chunking")
        chunking = CHUNKING.decode(message.chunking, "") if has_chunking else Chunking()
        files = tuple(NewStoreFile(file_id=each, chunking=chunking) for each in message.file_ids)
        return super().from_message(message, path, files=files)


NEW_STORE: Final = _NewStoreMapper(
    NewVectorStore,
    stores_pb.CreateVectorStoreRequest,
    renamed={"life_days": "expire_after_days"},
    only_domain=["files"],
    only_message=["file_ids", "chunking"],
)


def store_to_pb(store: VectorStore, clock: Clock) -> pb.VectorStore:
    return STORE.to_message(store, state=_STORE_STATE.encode(store.state(clock())))


def file_to_pb(file: StoreFile) -> pb.VectorStoreFile:
    """Convert a file in a store. Its size is shown once it is complete."""
    is_complete = file.state is FileState.COMPLETED
    return FILE.to_message(file if is_complete else replace(file, usage_bytes=0))


def store_changes(request: stores_pb.UpdateVectorStoreRequest) -> dict[str, Any]:
    """The changes of an update, by their fields in `StoreSettings`. Raises InvalidField for a wrong
    mask."""
    changes = changed_values(request, "vector_store_id")
    if "expire_after_days" in changes:
        changes["life_days"] = changes.pop("expire_after_days") or None
    if "metadata" in changes:
        changes["metadata"] = dict(changes["metadata"].pairs)
    return changes


def read_attributes(attributes: Mapping[str, pb.AttributeValue]) -> dict[str, AttributeValue]:
    """Convert attributes of a request. Raises MissingField."""
    return {key: ATTRIBUTE.decode(value, f"attributes.{key}") for key, value in attributes.items()}


# ---- filters

_COMPARATORS: Final = EnumMapper[Comparator](Comparator, search_pb.AttributeComparison.Comparator)
_JUNCTIONS: Final = EnumMapper[Junction](Junction, search_pb.CompoundFilter.Junction)


def read_filter(condition: search_pb.AttributeFilter, depth: int = 0) -> Filter:
    """Convert a filter. Raises MissingField or InvalidField."""
    if depth > _MAX_NESTING:
        raise InvalidField(field=FIELD, problem="conditions are nested too deeply")
    match condition.WhichOneof("condition"):
        case "comparison":
            return _read_comparison(condition.comparison)
        case "compound":
            compound = condition.compound
            filters = tuple(read_filter(inner, depth + 1) for inner in compound.filters)
            return Compound(_JUNCTIONS.decode(compound.junction, f"{FIELD}.type"), filters)
    raise MissingField(field=FIELD)


def _read_comparison(comparison: search_pb.AttributeComparison) -> Comparison:
    comparator = _COMPARATORS.decode(comparison.comparator, f"{FIELD}.type")
    values = tuple(ATTRIBUTE.decode(each, f"{FIELD}.value") for each in comparison.values)
    if comparator in (Comparator.IN, Comparator.NIN):
        return Comparison(comparison.key, comparator, values)
    if len(values) != 1:
        raise InvalidField(
            field=f"{FIELD}.value", problem=f"'{comparator}' compares with one value"
        )
    return Comparison(comparison.key, comparator, values[0])
