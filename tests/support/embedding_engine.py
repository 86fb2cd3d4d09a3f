"""A `ByteEngine` that embeds, what it answers, and requests to it."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inference_svc.engine.embedding_request import EmbeddingRequest, SubmitEmbedding
from inference_svc.engine.events import Embedded, Event, Failed
from svc_kit.errors import DomainError
from tests.support.byte_engine import Attempt, ByteEngine, Client


@dataclass
class EmbeddingEngine(ByteEngine):
    """`embedded` are the requests for vectors of `vector_size`; the next get `answers` first."""

    reply: Sequence[int] = ()
    vector_size: int = 3
    embedded: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Attempt] = field(default_factory=list)

    async def _answer(
        self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path != "/v1/embeddings":
            await super()._answer(path, body, reader, writer)
            return
        self.embedded.append(body)
        if not self.answers:
            self.routes[path] = lambda: (200, embedding_answer(body["input"], self.vector_size))
            await super()._answer(path, body, reader, writer)
            return
        attempt = self.answers.pop(0)
        self.got_one.set()
        writer.write(attempt.raw or b"")
        await writer.drain()
        if attempt.hold is not None:
            await attempt.hold.wait()
        raise ConnectionError


def vector_of(given: Sequence[int] | str, size: int) -> list[float]:
    """What it embeds tokens or a text as; the length is not 1."""
    values = given.encode() if isinstance(given, str) else given
    return [float(sum(values[at::size]) + len(values) * at) for at in range(size)]


def embedding_answer(inputs: Sequence[Any], size: int, **changes: Any) -> dict[str, Any]:
    """OpenAI's answer, with the last vector first."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector_of(each, size)}
        for index, each in enumerate(inputs)
    ]
    usage = {"prompt_tokens": sum(map(len, inputs)), "total_tokens": 0}
    return {"object": "list", "data": data[::-1], "model": "bytes", "usage": usage, **changes}


def embedding_request(*texts: str, is_text: bool = False, **changes: Any) -> EmbeddingRequest:
    """A request for the vectors of the bytes of texts as tokens, or of the texts themselves."""
    if is_text:
        return EmbeddingRequest(0, "m", texts=texts, **changes)
    return EmbeddingRequest(
        0, "m", tuple(array("i", [*each.encode()]) for each in texts), **changes
    )


async def embed(client: Client, request: EmbeddingRequest) -> list[Event]:
    """Submit a request, and return all its events."""
    client.send(SubmitEmbedding(request))
    return await embedded(client, request.sequence_id)


async def embedded(client: Client, sequence_id: int = 0) -> list[Event]:
    """The events of a request, when it has ended."""

    def own() -> list[Event]:
        return [each for each in client.events if getattr(each, "sequence_id", -1) == sequence_id]

    await client.wait_for(lambda: any(map(_is_end, own())))
    return own()


def _is_end(event: Event) -> bool:
    return isinstance(event, Failed) or (isinstance(event, Embedded) and event.is_last)


def vectors_in(events: Sequence[Event]) -> list[list[float]]:
    """The vectors in the order of the inputs."""
    found = {
        each.input_index: each.vector.tolist() for each in events if isinstance(each, Embedded)
    }
    return [vector for _, vector in sorted(found.items())]


def error_in(events: Sequence[Event]) -> DomainError:
    """The error with which a request ended."""
    (failed,) = (each.error for each in events if isinstance(each, Failed))
    return failed
