"""Builds vector stores: their services, ingestion, and the search, which share a client."""

from dataclasses import dataclass

from control_svc.core import Core, Slice, data_folder
from control_svc.inference.embeddings import EmbeddingClient
from control_svc.vector_stores.files import VectorFiles
from control_svc.vector_stores.ingest.extraction_job import TextExtractor
from control_svc.vector_stores.ingest.worker import IngestHandler
from control_svc.vector_stores.membership import KIND, FileAdder, retry_file
from control_svc.vector_stores.search.model import Search
from control_svc.vector_stores.search.service import VectorSearch
from control_svc.vector_stores.search.vector_index import VectorIndex
from control_svc.vector_stores.service import (
    CallerLimits,
    VectorStores,
    clear_expired_store,
    delete_unused_chunks,
    remove_deleted_files,
)


@dataclass(frozen=True, kw_only=True)
class VectorStoreSlice(Slice):
    search: Search
    """Caches vectors in memory: one per process."""


def build(core: Core, caller_limits: CallerLimits) -> VectorStoreSlice:
    bounds = core.settings.vector_stores
    embedder = EmbeddingClient(core.inference, core.token, bounds.call_timeout_s)
    adder = FileAdder(core.ids, core.clock, core.settings.embedding_model)
    index = VectorIndex(bounds.index_bytes)
    search = VectorSearch(core.transactions, embedder, index, adder, core.clock)
    stores = VectorStores(
        *core.shared,
        adder,
        search,
        caller_limits,
        core.notifications,
        core.settings.jobs.poll_interval_s,
    )
    extractor = TextExtractor(
        core.blobs, core.sandbox, data_folder(core.settings), bounds.file_bytes
    )
    handler = IngestHandler(
        core.transactions, extractor, embedder, adder, bounds.files_at_once, bounds.file_timeout_s
    )
    return VectorStoreSlice(
        servicers=[stores, VectorFiles(*core.shared, adder, caller_limits)],
        handlers=[handler],
        retries={KIND: retry_file},
        cleanup=[clear_expired_store, remove_deleted_files, delete_unused_chunks],
        search=search,
    )
