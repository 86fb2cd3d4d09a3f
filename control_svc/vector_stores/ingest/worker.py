"""The job handler of ingestion: extracts text, splits it into chunks, embeds and stores them.

Chunks are stored in groups, so an interrupted attempt repeats at most one group. They are
searchable once the file is completed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from control_svc.db.transaction import Transaction, Transactions, Work
from control_svc.files.model import File
from control_svc.files.queries import FileQueries
from control_svc.inference.embeddings import Embedder, EmbeddingModel, Vector, Vectors
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, EngineDied, Job
from control_svc.vector_stores.ingest.chunking import (
    Piece,
    build_chunks,
    halve,
    join_text,
    split_chunk,
    split_text,
)
from control_svc.vector_stores.ingest.extraction_job import ExtractionFailed, TextExtractor
from control_svc.vector_stores.membership import KIND, FileAdder, set_file_state
from control_svc.vector_stores.model import (
    Chunking,
    FileProblem,
    FileState,
    ProblemCode,
    StoreFile,
    VectorStore,
)
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.search.model import NewChunk
from svc_kit.errors import BlobMissing, EngineRestarting, FileNotFound

_GROUP_CHUNKS: Final = 16
"""Number of chunks that are embedded and stored together."""
_TOKENIZED_PIECES: Final = 512
"""Number of pieces whose tokens are counted by one call."""


class _FileRemoved(Exception):
    """The file is no longer in progress: it was removed or cancelled."""


@dataclass(frozen=True)
class IngestHandler:
    kind = KIND

    transactions: Transactions
    extractor: TextExtractor
    embedder: Embedder
    adder: FileAdder
    concurrency: int
    """Maximum number of files that are ingested in this process."""
    file_timeout_s: float
    """Maximum time of an attempt; a file that takes longer fails."""

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Ingest a file, or resume its ingestion."""
        problem = None
        deadline = asyncio.timeout(self.file_timeout_s)
        try:
            async with deadline:
                await self._ingest(claim, context)
        except _FileRemoved:
            return
        except ExtractionFailed as error:
            problem = FileProblem(ProblemCode(error.code), str(error))
        except EngineRestarting as error:
            if error.phase == "running":
                raise EngineDied(error) from error
            raise
        except TimeoutError:
            if not deadline.expired():
                raise
            limit = f"the limit is {self.file_timeout_s:g} seconds"
            message = f"Reading and embedding the file takes too long: {limit}."
            problem = FileProblem(ProblemCode.SERVER_ERROR, message)
        await context.finish(_finish(claim.subject, problem))

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Fail the file of a dead job."""
        _, message = job.error or ("", "")
        problem = FileProblem(ProblemCode.SERVER_ERROR, message)
        await _finish(job.subject, problem)(tx)

    async def _ingest(self, claim: Claim, context: JobContext) -> None:
        transactions = self.transactions.of(claim.project)
        file, store, source = await transactions.read(_load(claim.subject))
        name = store.embedding_model or self.adder.check_model()
        model = await self.embedder.model(claim.project, name)
        text = await self._extract_text(claim, source)
        pieces = await self._split(claim.project, model, text, file.chunking)
        chunks = build_chunks(pieces, file.chunking)
        step = 1 if claim.runs_alone else _GROUP_CHUNKS
        for first in range(file.num_chunks, len(chunks), step):
            group = chunks[first : first + step]
            vectors, digest = await self._embed(claim.project, model, group)
            new = [
                NewChunk(number, join_text(chunk), vector)
                for number, (chunk, vector) in enumerate(
                    zip(group, vectors, strict=True), start=first
                )
            ]
            await context.write(_add_chunks(claim.subject, model.name, digest, new), progress=True)

    async def _extract_text(self, claim: Claim, source: File | None) -> str:
        if source is not None:
            try:
                return await self.extractor.extract(source)
            except BlobMissing:
                transactions = self.transactions.of(claim.project)
                _, _, now_there = await transactions.read(_load(claim.subject))
                if now_there is not None:
                    raise  # its bytes are lost
        raise ExtractionFailed(ProblemCode.INVALID_FILE, "The file no longer exists.")

    async def _split(
        self, project: str, model: EmbeddingModel, text: str, chunking: Chunking
    ) -> list[Piece]:
        """Split a text into pieces that fit into a chunk and into the context of the model."""
        limit = min(chunking.max_tokens, model.max_tokens)
        texts, pieces = split_text(text), []
        for first in range(0, len(texts), _TOKENIZED_PIECES):
            group = texts[first : first + _TOKENIZED_PIECES]
            pieces += await self._count_tokens(project, model, group, limit)
        if not pieces:
            raise ExtractionFailed(ProblemCode.INVALID_FILE, "The file has no text.")
        return pieces

    async def _count_tokens(
        self, project: str, model: EmbeddingModel, texts: Sequence[str], limit: int
    ) -> list[Piece]:
        """Count the tokens of texts, and halve those that are over the limit."""
        counts = await self.embedder.count_tokens(project, model, texts)
        pieces: list[Piece] = []
        for text, num_tokens in zip(texts, counts, strict=True):
            if not num_tokens:
                continue  # whitespace, which would make a chunk of unlimited length
            if num_tokens <= limit or len(text) < 2:
                pieces.append(Piece(text, num_tokens))
            else:
                pieces += await self._count_tokens(project, model, halve(text), limit)
        return pieces

    async def _embed(
        self, project: str, model: EmbeddingModel, chunks: Sequence[Sequence[Piece]]
    ) -> tuple[list[Vector], str]:
        """Embed chunks. Returns their vectors and the digest of the model.

        A chunk over the context of the model is split; its vector is the mean of those of its
        windows, weighted by their tokens.
        """
        windows = [split_chunk(chunk, model.max_tokens) for chunk in chunks]
        texts = [join_text(window) for parts in windows for window in parts]
        rows, digest = await self.embedder.embed(project, model.name, texts, is_background=True)
        vectors: list[Vector] = []
        for parts in windows:
            weights = [sum(piece.num_tokens for piece in window) for window in parts]
            vectors.append(_mean(rows[: len(parts)], weights))
            rows = rows[len(parts) :]
        return vectors, digest


def _mean(vectors: Vectors, weights: Sequence[int]) -> Vector:
    mean: Vector = np.asarray(weights, np.float32) @ vectors
    length = float(np.linalg.norm(mean))
    return mean / length if length else mean


def _load(entry: str) -> Work[tuple[StoreFile, VectorStore, File | None]]:
    """Read the file of the store, the store, and the uploaded file; None if it is deleted."""

    async def load(tx: Transaction) -> tuple[StoreFile, VectorStore, File | None]:
        file = await _get_in_progress(tx, entry)
        store = await VectorStoreQueries(tx).get(file.store_id)
        try:
            now = await tx.now()
            return file, store, await FileQueries(tx).get(file.file_id, now)
        except FileNotFound:
            return file, store, None

    return load


async def _get_in_progress(tx: Transaction, entry: str) -> StoreFile:
    file = await StoreFileQueries(tx).get(entry)
    if file is None or file.state is not FileState.IN_PROGRESS:
        raise _FileRemoved
    return file


async def _lock(tx: Transaction, entry: str) -> tuple[VectorStore, StoreFile]:
    """Lock the store of a file, which protects the file too. Raises _FileRemoved."""
    file = await _get_in_progress(tx, entry)
    store = await VectorStoreQueries(tx).lock(file.store_id)
    return store, await _get_in_progress(tx, entry)


def _add_chunks(entry: str, model: str, digest: str, chunks: Sequence[NewChunk]) -> Work[None]:
    """Store chunks. The first vectors of a store determine its model."""

    async def add(tx: Transaction) -> None:
        store, file = await _lock(tx, entry)
        dimensions = len(chunks[0].vector)
        pinned = store.pin_embedding(model, digest, dimensions)
        if pinned != store:
            await VectorStoreQueries(tx).update(pinned)
        await ChunkQueries(tx).add(file, chunks)
        size = sum(len(chunk.text.encode()) + 2 * dimensions for chunk in chunks)
        file = replace(
            file,
            num_chunks=file.num_chunks + len(chunks),
            usage_bytes=file.usage_bytes + size,
        )
        await StoreFileQueries(tx).update(file)

    return add


def _finish(entry: str, problem: FileProblem | None = None) -> Work[None]:
    """Complete a file, or fail it because of a problem. No effect if it was removed."""
    state = FileState.FAILED if problem else FileState.COMPLETED

    async def finish(tx: Transaction) -> None:
        try:
            store, file = await _lock(tx, entry)
        except _FileRemoved:
            return
        store = await set_file_state(tx, store, file, state, problem)
        await VectorStoreQueries(tx).update(store.touch(await tx.now()))

    return finish
