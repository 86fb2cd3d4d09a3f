"""Closed-loop load on any OpenAI-compatible server, with a minimal client.

The client shares the machine with the server, so during the measurement it only records the bytes
and the time of each read. It parses them afterwards.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast
from urllib.parse import urlsplit

from bench.streams import Arrival, LoadError, Stream, check_streams
from bench.workload import Workload

TIMEOUT_S = 600.0


async def run_load(url: str, workload: Workload, model: str, *, chat: bool = False) -> list[Stream]:
    """Send the workload's requests and return their streams.

    Raises LoadError if a request fails or does not produce exactly the requested number of tokens.
    """
    path = "/v1/chat/completions" if chat else "/v1/completions"
    streams: list[Stream] = []
    prompts: Iterable[str | list[int]] = workload.text_prompts()
    if workload.as_ids:
        prompts = workload.token_prompts()
    queue = enumerate(prompts)

    async def caller() -> None:
        for number, prompt in queue:
            prompt_fields = (
                {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
            )
            body = json.dumps(workload.to_json(model, number) | prompt_fields).encode()
            sent, reads = await exchange(url, path, body)
            streams.append(read_stream(sent, reads))

    async with asyncio.TaskGroup() as group:
        for _ in range(workload.concurrency):
            group.create_task(caller())
    check_streams(streams, workload.outputs)
    return streams


Reads = list[tuple[float, bytes]]  # time of arrival and bytes of each read


class _Recorder(asyncio.Protocol):
    """Sends one request and records the response until the server closes the connection or
    `max_reads` is reached."""

    def __init__(self, request: bytes, max_reads: int | None) -> None:
        self.reads: Reads = []
        self._max_reads = max_reads
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.perf_counter(), data))
        if len(self.reads) == self._max_reads and not self.closed.done():
            self.closed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def exchange(
    url: str, path: str, body: bytes, max_reads: int | None = None, headers: str = ""
) -> tuple[float, Reads]:
    """Send one request and return the time of sending and the recorded reads.

    With `max_reads` the client disconnects after that many reads. `headers` are lines of the head.
    """
    address = urlsplit(url)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    )
    sent = time.perf_counter()
    loop = asyncio.get_running_loop()
    transport, recorder = await loop.create_connection(
        lambda: _Recorder(head.encode() + body, max_reads),
        address.hostname or "",
        address.port or 80,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await recorder.closed
    finally:
        transport.close()
    return sent, recorder.reads


class EventReader:
    """Incremental parser of an HTTP response with server-sent events."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""  # bytes of an incomplete event, or the body of an error
        self._raw = b""
        self._chunked = False
        self._remaining = 0  # bytes left in the current chunk, including its CRLF

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Append bytes and yield the data of each event that is now complete."""
        self._raw += data
        if not self.status and not self._read_head():
            return
        self._read_body()
        while self.status == 200 and (end := self.body.find(b"\n\n")) >= 0:
            event, self.body = self.body[:end], self.body[end + 2 :]
            if event.startswith(b"data: "):
                yield event[6:]

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        head, self._raw = self._raw[:end].lower(), self._raw[end + 4 :]
        self.status = int(head.split(b" ", 2)[1])
        self._chunked = b"transfer-encoding: chunked" in head
        return True

    def _read_body(self) -> None:
        if not self._chunked:
            self.body, self._raw = self.body + self._raw, b""
            return
        while self._raw:
            if not self._remaining:
                end = self._raw.find(b"\r\n")
                if end < 0:
                    return
                self._remaining = int(self._raw[:end], 16) + 2
                self._raw = self._raw[end + 2 :]
            piece = self._raw[: self._remaining]
            self._raw = self._raw[self._remaining :]
            self.body += piece[: max(0, self._remaining - 2)]
            self._remaining -= len(piece)


def read_stream(sent: float, reads: Reads) -> Stream:
    """Parse recorded reads. Raises LoadError if the response is an error or incomplete."""
    reader, arrivals, usage, done, num_tokens = EventReader(), [], None, False, 0
    for arrived, data in reads:
        for event in reader.feed(data):
            if event == b"[DONE]":
                done = True
                continue
            chunk = json.loads(event)
            if "error" in chunk:
                raise LoadError(f"the stream failed: {chunk['error']}")
            usage = chunk.get("usage") or usage
            if _carries_text(chunk):
                total = chunk.get("timings", {}).get("predicted_n", num_tokens + 1)
                arrivals.append(Arrival(arrived, total - num_tokens))
                num_tokens = total
    if reader.status != 200:
        raise LoadError(f"HTTP {reader.status}: {reader.body[:500].decode(errors='replace')}")
    if not done or usage is None:
        raise LoadError(
            "the stream ended before [DONE]" if not done else "the stream contained no usage"
        )
    return Stream(
        sent=sent,
        ended=reads[-1][0],
        arrivals=tuple(arrivals),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
    )


def _carries_text(chunk: dict[str, Any]) -> bool:
    return any(
        choice.get("text") or (choice.get("delta") or {}).get("content")
        for choice in chunk.get("choices", ())
    )
