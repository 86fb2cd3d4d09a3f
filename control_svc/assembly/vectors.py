"""Vector stores: what callers do with them, what reads their files, and what searches them."""

from functools import cached_property

from corral.control.v1 import vector_store_file_service_pb2_grpc, vector_store_service_pb2_grpc

from control_svc.api.vector_store_file_service import VectorStoreFileServicer
from control_svc.api.vector_store_service import VectorStoreServicer
from control_svc.assembly.ground import Ground, data_folder
from control_svc.clients.embedding_client import EmbeddingClient
from control_svc.domain.search import Search
from control_svc.usecases.vector_adding import FileAdder
from control_svc.usecases.vector_files import VectorFiles
from control_svc.usecases.vector_index import VectorIndex
from control_svc.usecases.vector_reading import FileReading
from control_svc.usecases.vector_search import VectorSearch
from control_svc.usecases.vector_stores import VectorStores
from control_svc.usecases.vector_texts import DocumentTexts
from svc_kit.rpc_server import Service


class Vectors:
    """The parts of vector stores, which share an embedding model and its client."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._bounds = ground.settings.vector_stores
        self._embedder = EmbeddingClient(
            ground.inference, ground.token, self._bounds.call_timeout_s
        )
        self._adder = FileAdder(ground.ids, ground.clock, ground.settings.embedding_model)

    @cached_property
    def search(self) -> Search:
        """What `file_search` asks; one for the process, because it keeps vectors in memory."""
        ground = self._ground
        index = VectorIndex(ground.transactions, self._bounds.index_bytes)
        return VectorSearch(ground.transactions, self._embedder, index, self._adder, ground.clock)

    def services(self) -> list[Service]:
        """What callers do with stores and their files."""
        ground = self._ground
        shared = (ground.transactions, self._adder, ground.ids, ground.tokens, ground.clock)
        return [
            Service(
                vector_store_service_pb2_grpc.add_VectorStoreServiceServicer_to_server,
                VectorStoreServicer(
                    VectorStores(*shared, ground.notices, ground.settings.jobs.poll_interval_s),
                    self.search,
                    ground.clock,
                ),
                "corral.control.v1.VectorStoreService",
            ),
            Service(
                vector_store_file_service_pb2_grpc.add_VectorStoreFileServiceServicer_to_server,
                VectorStoreFileServicer(VectorFiles(*shared)),
                "corral.control.v1.VectorStoreFileService",
            ),
        ]

    def handler(self) -> FileReading:
        """What does the jobs of files."""
        ground = self._ground
        reader = DocumentTexts(
            ground.blobs, ground.sandbox, data_folder(ground.settings), self._bounds.file_bytes
        )
        return FileReading(
            ground.transactions, reader, self._embedder, self._adder, self._bounds.files_at_once
        )
