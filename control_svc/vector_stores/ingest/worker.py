"""The job handler of ingestion: extracts text, splits it into chunks, embeds and stores them.

Chunks are stored in groups, so an interrupted attempt repeats one group; they are searchable once
the file is completed.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from control_svc.blobs.store import BlobMissing
from control_svc.db.transaction import Transaction, Transactions
from control_svc.files.model import File
from control_svc.files.queries import FileQueries
from control_svc.inference.embeddings import Embedder, EmbeddingModel, Vector, Vectors
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, EngineDied, Job
from control_svc.vector_stores.ingest.chunking import (
    Piece,
    chunks_of,
    halves_of,
    pieces_of,
    text_of,
    windows_of,
)
from control_svc.vector_stores.ingest.extraction_job import DocumentReader, Unreadable
from control_svc.vector_stores.membership import KIND, FileAdder, move
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
from svc_kit.errors import EngineRestarting, FileNotFound

_CHUNKS_AT_ONCE: Final = 16
"""How many passages are computed, and kept, together."""
_PIECES_AT_ONCE: Final = 512


class _Gone(Exception):
    """The file has been deleted from its store, or given up: nothing is left to do."""


class FileReading:
    """Does the jobs of files in stores."""

    kind = KIND

    def __init__(
        self,
        transactions: Transactions,
        reader: DocumentReader,
        embedder: Embedder,
        adder: FileAdder,
        concurrency: int,
    ) -> None:
        """`concurrency` is how many files are read at a time in this process."""
        self._transactions = transactions
        self._reader = reader
        self._embedder = embedder
        self._adder = adder
        self.concurrency = concurrency

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Read a file, or what is left of it."""
        try:
            await self._read(claim, context)
        except _Gone:
            return
        except Unreadable as unreadable:
            problem = FileProblem(ProblemCode(unreadable.code), str(unreadable))
            await context.finish(_failing(claim.project, claim.subject, problem))
        except EngineRestarting as error:
            if error.phase == "running":
                raise EngineDied(error) from error
            raise

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Fail the file whose job is dead."""
        _, message = job.error or ("", "")
        problem = FileProblem(ProblemCode.SERVER_ERROR, message)
        await _failing(job.project, job.subject, problem)(tx)

    async def _read(self, claim: Claim, context: JobContext) -> None:
        file, store, source = await self._transactions.read(_whole(claim))
        name = store.embedding_model or self._adder.check_model()
        model = await self._embedder.model(claim.project, name)
        text = await self._text(source)
        pieces = await self._pieces(claim.project, model, text, file.chunking)
        chunks = chunks_of(pieces, file.chunking)
        step = 1 if claim.runs_alone else _CHUNKS_AT_ONCE
        for first in range(file.num_chunks, len(chunks), step):
            group = chunks[first : first + step]
            vectors, digest = await self._embed(claim.project, model, group)
            new = [
                NewChunk(number, text_of(chunk), vector)
                for number, (chunk, vector) in enumerate(
                    zip(group, vectors, strict=True), start=first
                )
            ]
            await context.write(_keeping(claim, model.name, digest, new), progress=True)
        await context.finish(_completing(claim))

    async def _text(self, source: File | None) -> str:
        if source is not None:
            try:
                return await self._reader.read(source)
            except BlobMissing:
                pass
        raise Unreadable(ProblemCode.INVALID_FILE, "The file does not exist any more.")

    async def _pieces(
        self, project: str, model: EmbeddingModel, text: str, chunking: Chunking
    ) -> list[Piece]:
        """The text in pieces that are small enough, with their tokens."""
        limit = min(chunking.max_tokens, model.max_tokens)
        waiting, pieces = pieces_of(text), []
        for first in range(0, len(waiting), _PIECES_AT_ONCE):
            group = waiting[first : first + _PIECES_AT_ONCE]
            pieces += await self._counted(project, model, group, limit)
        if not pieces:
            raise Unreadable(ProblemCode.INVALID_FILE, "The file has no text.")
        return pieces

    async def _counted(
        self, project: str, model: EmbeddingModel, texts: Sequence[str], limit: int
    ) -> list[Piece]:
        counts = await self._embedder.count_tokens(project, model.name, texts)
        pieces: list[Piece] = []
        for text, num_tokens in zip(texts, counts, strict=True):
            if not num_tokens:
                continue  # blanks, which would make a passage without end
            if num_tokens <= limit or len(text) < 2:
                pieces.append(Piece(text, num_tokens))
            else:
                pieces += await self._counted(project, model, halves_of(text), limit)
        return pieces

    async def _embed(
        self, project: str, model: EmbeddingModel, chunks: Sequence[Sequence[Piece]]
    ) -> tuple[list[Vector], str]:
        """A vector for each passage: of one that is too long for the model, the mean of its
        parts', by their lengths. And the digest of the model that they are of."""
        windows = [windows_of(chunk, model.max_tokens) for chunk in chunks]
        texts = [text_of(window) for each in windows for window in each]
        found, digest = await self._embedder.embed(project, model.name, texts, is_background=True)
        vectors: list[Vector] = []
        for each in windows:
            own, found = found[: len(each)], found[len(each) :]
            vectors.append(_mean(own, [sum(p.num_tokens for p in window) for window in each]))
        return vectors, digest


def _mean(vectors: Vectors, weights: Sequence[int]) -> Vector:
    mean: Vector = np.asarray(weights, np.float32) @ vectors
    length = float(np.linalg.norm(mean))
    return mean / length if length else mean


def _whole(
    claim: Claim,
) -> Callable[[Transaction], Awaitable[tuple[StoreFile, VectorStore, File | None]]]:
    """The file in its store, the store, and the file itself; None: it is gone."""

    async def find(tx: Transaction) -> tuple[StoreFile, VectorStore, File | None]:
        file = await _unfinished(tx, claim.project, claim.subject)
        store = await VectorStoreQueries(tx).get(claim.project, file.store_id)
        try:
            now = await tx.now()
            return file, store, await FileQueries(tx).get(claim.project, file.file_id, now)
        except FileNotFound:
            return file, store, None

    return find


async def _unfinished(tx: Transaction, project: str, entry: str) -> StoreFile:
    file = await StoreFileQueries(tx).entry(project, entry)
    if file is None or file.state is not FileState.IN_PROGRESS:
        raise _Gone
    return file


async def _locked(tx: Transaction, project: str, entry: str) -> tuple[VectorStore, StoreFile]:
    """Lock the store first: changes of files need its lock."""
    found = await _unfinished(tx, project, entry)
    store = await VectorStoreQueries(tx).lock(project, found.store_id)
    return store, await _unfinished(tx, project, entry)


def _keeping(
    claim: Claim, model: str, digest: str, chunks: Sequence[NewChunk]
) -> Callable[[Transaction], Awaitable[None]]:
    """Keep passages, which are not found yet. The first vectors of a store decide its model."""

    async def keep(tx: Transaction) -> None:
        store, file = await _locked(tx, claim.project, claim.subject)
        dimensions = len(chunks[0].vector)
        pinned = store.embedded_by(model, digest, dimensions)
        if pinned != store:
            await VectorStoreQueries(tx).update(claim.project, pinned)
        await ChunkQueries(tx).add(file, claim.project, chunks)
        size = sum(len(chunk.text.encode()) + 2 * dimensions for chunk in chunks)
        grown = replace(
            file,
            num_chunks=file.num_chunks + len(chunks),
            usage_bytes=file.usage_bytes + size,
        )
        await StoreFileQueries(tx).update(claim.project, grown)

    return keep


def _completing(claim: Claim) -> Callable[[Transaction], Awaitable[None]]:
    return _ending(claim.project, claim.subject, FileState.COMPLETED)


def _failing(
    project: str, entry: str, problem: FileProblem
) -> Callable[[Transaction], Awaitable[None]]:
    return _ending(project, entry, FileState.FAILED, problem)


def _ending(
    project: str, entry: str, state: FileState, problem: FileProblem | None = None
) -> Callable[[Transaction], Awaitable[None]]:
    async def end(tx: Transaction) -> None:
        try:
            store, file = await _locked(tx, project, entry)
        except _Gone:
            return
        ended = await move(tx, project, store, file, state, problem)
        await VectorStoreQueries(tx).update(project, ended.used(await tx.now()))

    return end
