"""Closed-loop load on any OpenAI-compatible server, with a client that hardly costs anything.

The client shares the machine with the server it measures, so it does as little as it can while
the clock runs: it stamps the bytes of each read and takes them apart afterwards.

    python -m bench.loadgen --url http://127.0.0.1:8080 --requests 32 --concurrency 8
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from bench.streams import Arrival, LoadError, LoadFigures, Stream, check_streams
from bench.workload import SAMPLINGS, Workload

TIMEOUT_S = 600.0


async def run_load(url: str, workload: Workload, model: str, *, chat: bool = False) -> list[Stream]:
    """Send the workload's requests and return their streams.

    Raises LoadError when a request fails or gives another number of tokens than it was asked for.
    """
    path = "/v1/chat/completions" if chat else "/v1/completions"
    streams: list[Stream] = []
    waiting = enumerate(workload.text_prompts())

    async def caller() -> None:
        for number, prompt in waiting:
            asked = (
                {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
            )
            body = json.dumps(workload.to_json(model, number) | asked).encode()
            sent, reads = await exchange(url, path, body)
            streams.append(read_stream(sent, reads))

    async with asyncio.TaskGroup() as group:
        for _ in range(workload.concurrency):
            group.create_task(caller())
    check_streams(streams, workload.outputs)
    return streams


Reads = list[tuple[float, bytes]]  # when bytes arrived, and the bytes


class _Recorder(asyncio.Protocol):
    """Sends one request and keeps what comes back until the server closes the connection, or until
    it has read so often that the client goes away."""

    def __init__(self, request: bytes, most_reads: int | None) -> None:
        self.reads: Reads = []
        self._most_reads = most_reads
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, not their base class
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.perf_counter(), data))
        if len(self.reads) == self._most_reads and not self.closed.done():
            self.closed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def exchange(
    url: str, path: str, body: bytes, most_reads: int | None = None
) -> tuple[float, Reads]:
    """Send one request; return when it was sent, and what came back until the end or until the
    client went away after that many reads."""
    address = urlsplit(url)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    sent = time.perf_counter()
    loop = asyncio.get_running_loop()
    transport, recorder = await loop.create_connection(
        lambda: _Recorder(head.encode() + body, most_reads),
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
    """Takes an HTTP response apart: `feed` bytes cut anywhere, get the data of whole SSE events."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""  # what is not an event yet; all of it where the answer is an error
        self._raw = b""
        self._chunked = False
        self._left = 0  # bytes of the present chunk still to come, its line end included

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each event that these bytes complete."""
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
            if not self._left:
                end = self._raw.find(b"\r\n")
                if end < 0:
                    return
                self._left = int(self._raw[:end], 16) + 2
                self._raw = self._raw[end + 2 :]
            taken = self._raw[: self._left]
            self._raw = self._raw[self._left :]
            self.body += taken[: max(0, self._left - 2)]
            self._left -= len(taken)


def read_stream(sent: float, reads: Reads) -> Stream:
    """Make a stream of what was recorded. Raises LoadError where it is no whole answer."""
    reader, arrivals, usage, done, known = EventReader(), [], None, False, 0
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
                total = chunk.get("timings", {}).get("predicted_n", known + 1)
                arrivals.append(Arrival(arrived, total - known))
                known = total
    if reader.status != 200:
        raise LoadError(f"HTTP {reader.status}: {reader.body[:500].decode(errors='replace')}")
    if not done or usage is None:
        raise LoadError("the stream ended early" if not done else "the stream named no usage")
    return Stream(
        sent=sent,
        ended=reads[-1][0],
        arrivals=tuple(arrivals),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
    )


def _carries_text(chunk: dict[str, Any]) -> bool:
    return any(
        choice.get("text") or (choice.get("delta") or {}).get("content")
        for choice in chunk.get("choices", ())
    )


def main() -> None:
    """Load one server and print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="bench")
    parser.add_argument("--chat", action="store_true", help="/v1/chat/completions")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--shared-prefix-tokens", type=int, default=0)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--sampling", choices=sorted(SAMPLINGS), default="greedy")
    parser.add_argument("--seed", type=int, default=0)
    asked = vars(parser.parse_args())
    url, model, chat = asked.pop("url"), asked.pop("model"), asked.pop("chat")
    workload = Workload(**asked | {"sampling": SAMPLINGS[asked["sampling"]]})
    streams = uvloop.run(run_load(url, workload, model, chat=chat))
    print(json.dumps(LoadFigures.of(streams).to_json()))


if __name__ == "__main__":
    main()
