"""One URL of an upstream: its HTTP client and its health.

Every answer has bounds on its bytes, lines and silence. Redirects are not followed, so that nothing
of a request reaches another URL than the configured one.
"""

import asyncio
import enum
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from inference_svc.upstream.faults import (
    AnswerInvalid,
    EngineFault,
    EngineLost,
    EngineOverloaded,
    EngineUnusable,
    RequestFailed,
    RequestRefused,
    TlsRefused,
    excerpt,
)
from inference_svc.upstream.http_connection import HttpConnection
from inference_svc.upstream.target import UpstreamTarget

MAX_BODY_BYTES: Final = 8 << 20
_MAX_LINE_BYTES: Final = 4 << 20
_MAX_ERROR_BYTES: Final = 16 << 10
_MAX_IDLE: Final = 32
"""Connections that are kept for the next requests."""
_CALL_TIMEOUT_S: Final = 30.0
_FIRST_REST_S: Final = 1.0
_MAX_RETRY_AFTER_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0

_UNSUPPORTED: Final = "input is not supported"
"""In the error with which llama-server refuses pictures that its model does not read, as 500."""
REFUSED: Final = frozenset({400, 413, 422})
"""The statuses with which an engine refuses a stream; without the route it is another engine."""

OnData = Callable[[bytes], bool]
"""Gets the data of an event; returns whether no more is wanted."""


class EndpointState(enum.Enum):
    """Whether requests are sent to it: it was probed and serves; it will be probed, at the latest
    after a pause that grows; it serves a model that is not ours."""

    UP = "up"
    DOWN = "down"
    REFUSED = "refused"


class Endpoint:
    """One URL. `num_running` are the requests in flight, of at most `slots`, and of batches `ahead`
    more, which wait in the engine. `problem` is why it is not up since `down_at`; `is_lost`: the
    last probe failed, by more than overload. `adapters` are as in `EngineInfo`. `verify` asks what
    the engine is, at each new connection for a stream. `certificate_end` is that of the last TLS
    connection, in seconds since 1970."""

    def __init__(
        self, target: UpstreamTarget, url: str, verify: "Callable[[Endpoint], Awaitable[None]]"
    ) -> None:
        self.url = url
        self._verify = verify
        self.state = EndpointState.DOWN
        self.problem = "not asked yet"
        self.is_lost = False
        self.adapters: Mapping[str, str | int] = {}
        self.certificate_end: int | None = None
        self.num_running = self.slots = self.ahead = 0
        self.probe_at = self.rest_until = self.down_at = 0.0
        self._pause_s, self._rest_s = _FIRST_PAUSE_S, _FIRST_REST_S
        self._target = target
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_tls else 80)
        self._prefix = parts.path.rstrip("/") or target.default_path
        lines = [f"Host: {parts.netloc}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in target.headers]
        self._headers = "\r\n".join(lines)
        self._tls: tuple[tuple[int, ...], ssl.SSLContext] | None = None
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()

    # --- health -----------------------------------------------------------------------------------

    def mark_up(self) -> None:
        """Send requests to it: it has been probed."""
        self.state, self.problem, self.is_lost = EndpointState.UP, "", False

    def mark_served(self) -> None:
        """Record a complete answer: the next pause and the next rest are short ones again."""
        self._pause_s, self._rest_s = _FIRST_PAUSE_S, _FIRST_REST_S

    def mark_failed(self, fault: EngineFault, now: float) -> None:
        """Send no more requests to it until it has been probed: at once after a first failure, and
        after growing pauses if it repeats. Overload only sets it aside for rests that grow, and one
        that refuses what would wait in it gets no more of that."""
        if isinstance(fault, EngineOverloaded) and self.state is EndpointState.UP:
            if self.num_running >= self.slots > 0:
                self.ahead = 0
            else:
                self._rest(fault.retry_after_s, now)
            return
        is_unusable = isinstance(fault, EngineUnusable)
        was_up = self.state is EndpointState.UP
        self.state = EndpointState.REFUSED if is_unusable else EndpointState.DOWN
        self.problem = str(fault)
        if was_up:
            self.down_at = now
        if was_up and self._pause_s == _FIRST_PAUSE_S:
            self.probe_at = now
        else:
            self.probe_at = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, _MAX_PAUSE_S)

    def _rest(self, retry_after_s: float, now: float) -> None:
        if self.rest_until <= now:  # requests that were on their way together count once
            retry_after_s = max(retry_after_s, self._rest_s)
            self._rest_s = min(self._rest_s * 2, _MAX_PAUSE_S)
        self.rest_until = max(self.rest_until, now + retry_after_s)

    def can_start(self, now: float, *, is_ahead: bool = False) -> bool:
        """Whether it may get one more request; with `is_ahead` one that may wait in it."""
        limit = self.slots + (self.ahead if is_ahead else 0)
        is_free = self.num_running < limit and self.rest_until <= now
        return self.state is EndpointState.UP and is_free

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()

    # --- requests ---------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the parsed JSON of an answer with status 200. Raises `EngineFault`."""
        reader = _JsonReader()
        timeout_s = _CALL_TIMEOUT_S
        await self._exchange(method, path, body, reader, lambda _: None, timeout_s, timeout_s)
        return reader.value()

    async def compute(self, path: str, body: Any, refused: frozenset[int]) -> Any:
        """Return the parsed JSON of what the engine that was probed computes, in at most the time
        of a first token; `refused` as in `stream`. Raises `EngineFault`."""
        reader, timeout_s = _JsonReader(), self._target.first_token_timeout_s
        reader.must_be_ours, reader.refused = True, refused
        await self._exchange("POST", path, body, reader, lambda _: None, timeout_s, timeout_s)
        return reader.value()

    async def post(self, path: str, body: Any) -> None:
        """Send a request whose answer is its status, in at most the time of a first token. Raises
        `EngineFault`."""
        reader, timeout_s = _JsonReader(), self._target.first_token_timeout_s
        await self._exchange("POST", path, body, reader, lambda _: None, timeout_s, timeout_s)
        reader.check_status()

    async def stream(
        self,
        path: str,
        body: Any,
        on_data: OnData,
        on_open: Callable[[HttpConnection], None],
        refused: frozenset[int] = REFUSED,
    ) -> None:
        """Send a request whose answer is server-sent events; `on_data` gets the data of each.

        `on_open` gets the connection, to pause it and to touch it with each token. `refused` are
        the statuses that are for the request, and not for the engine. Raises `EngineFault`, and
        what `on_data` raises.
        """
        reader, target = _EventReader(on_data, refused), self._target
        await self._exchange(
            "POST",
            path,
            body,
            reader,
            on_open,
            target.first_token_timeout_s,
            target.token_timeout_s,
        )
        reader.check_status()

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Any,
        reader: "_Reader",
        on_open: Callable[[HttpConnection], None],
        first_s: float,
        between_s: float,
    ) -> None:
        request = self._request(method, path, body)
        while True:
            connection, is_reused = await self._connect()
            if not is_reused and reader.must_be_ours:
                self._release(connection)
                await self._verify(self)  # takes this connection, and gives it back if it can
                connection, _ = await self._connect()
            on_open(connection)
            try:
                await connection.exchange(request, reader, first_s=first_s, between_s=between_s)
            except EngineLost:
                # The server may close an idle connection while the request is on its way.
                if is_reused and connection.is_cut and not connection.has_answered:
                    continue
                raise
            finally:
                self._release(connection)
            return

    def _request(self, method: str, path: str, body: Any) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", self._headers]
        if self._target.key_file is not None:
            try:
                key = self._target.key_file.read_bytes().strip().decode("ascii")
            except OSError as problem:
                raise EngineLost(f"its key file cannot be read: {problem}") from None
            except UnicodeDecodeError:
                raise EngineUnusable("its key file has bytes that are not ASCII") from None
            if not key.isprintable():
                raise EngineUnusable("its key file has control characters in the key")
            lines.append(f"Authorization: Bearer {key}")
        data = b""
        if body is not None:
            data = orjson.dumps(body)
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + data

    async def _connect(self) -> tuple[HttpConnection, bool]:
        while self._idle:
            if not (connection := self._idle.pop()).is_closed:
                return connection, True
            self._open.discard(connection)
        context = self._context() if self._is_tls else None
        try:
            async with asyncio.timeout(self._target.connect_timeout_s):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    HttpConnection, self._host, self._port, ssl=context
                )
        except TimeoutError:
            raise EngineLost("it did not accept a connection in time") from None
        except ssl.SSLError as problem:
            raise TlsRefused(f"its certificate or TLS is not accepted: {problem}") from None
        except OSError as problem:
            raise EngineLost(f"it cannot be reached: {problem}") from None
        self._open.add(connection)
        if certificate := transport.get_extra_info("peercert"):
            self.certificate_end = ssl.cert_time_to_seconds(certificate["notAfter"])
        return connection, False

    def _release(self, connection: HttpConnection) -> None:
        if connection.is_closed or len(self._idle) >= _MAX_IDLE:
            connection.close()
            self._open.discard(connection)
        else:
            self._idle.append(connection)

    def _context(self) -> ssl.SSLContext:
        """The TLS context, made again when its files change."""
        target = self._target
        files = [target.ca_file, target.certificate_file, target.certificate_key_file]
        try:
            state = tuple(_changed_at(path) for path in files if path is not None)
            if self._tls is None or self._tls[0] != state:
                context = ssl.create_default_context(cafile=target.ca_file)
                if target.certificate_file is not None:
                    context.load_cert_chain(target.certificate_file, target.certificate_key_file)
                self._tls = state, context
        except (OSError, ssl.SSLError) as problem:
            raise EngineLost(f"the TLS files cannot be used: {problem}") from None
        return self._tls[1]


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns


class _Reader(ABC):
    """Reads the head; a status that is an error raises the fault once the body is read."""

    must_be_ours = False
    """Whether the request may only go to the engine that was probed."""
    refused = frozenset({400, 404, 405, 413, 422, 501})
    """The statuses that are for the request, and not for the engine."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._error = bytearray()

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        if status < 200 or 300 <= status < 400:
            raise AnswerInvalid(f"it answered with status {status}, which is not followed")

    def body(self, data: bytes) -> bool:
        if self._status == 200:
            return self.read(data)
        self._error += data[: _MAX_ERROR_BYTES - len(self._error)]
        return len(self._error) >= _MAX_ERROR_BYTES

    @abstractmethod
    def read(self, data: bytes) -> bool:
        """Read the next bytes of an answer with status 200; returns as `Receiver.body`."""

    def check_status(self) -> None:
        """Raise the fault that the status means."""
        status = self._status
        if status == 200:
            return
        problem = f"it answered with status {status}: {excerpt(bytes(self._error))}"
        if status in (429, 503):
            value = self._headers.get(b"retry-after", b"").decode("latin-1")
            raise EngineOverloaded(problem, _retry_after(value))
        if status in self.refused or (status == 500 and _UNSUPPORTED in problem):
            raise RequestRefused(problem, status, _error_of(bytes(self._error)))
        if status in (401, 403):
            raise EngineUnusable(problem)
        if status == 500:
            raise RequestFailed(problem)
        raise EngineLost(problem) if status >= 500 else AnswerInvalid(problem)


def _error_of(body: bytes) -> Any:
    """The error in a body, as OpenAI's API writes it; None if it has none."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parsed.get("error") if isinstance(parsed, dict) else None


def _retry_after(value: str) -> float | None:
    """The seconds that it asks for, or those until the date, within bounds; None for neither."""
    if value.isascii() and value.isdigit() and len(value) < 6:
        seconds = float(value)
    else:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, _FIRST_REST_S), _MAX_RETRY_AFTER_S)


class _JsonReader(_Reader):
    def __init__(self) -> None:
        super().__init__()
        self._data = bytearray()

    def read(self, data: bytes) -> bool:
        self._data += data
        if len(self._data) > MAX_BODY_BYTES:
            raise AnswerInvalid(f"its answer has more than {MAX_BODY_BYTES} bytes")
        return False

    def value(self) -> Any:
        self.check_status()
        return parse_json(bytes(self._data))


class _EventReader(_Reader):
    """Splits server-sent events into their data; an event is one line of data."""

    must_be_ours = True

    def __init__(self, on_data: OnData, refused: frozenset[int]) -> None:
        super().__init__()
        self.refused = refused
        self._on_data = on_data
        self._rest = b""

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        super().head(status, headers)
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if status == 200 and media_type != b"text/event-stream":
            raise AnswerInvalid(f"it answered with {excerpt(media_type)} instead of a stream")

    def read(self, data: bytes) -> bool:
        if self._rest:
            data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise AnswerInvalid(f"a line of its answer has more than {_MAX_LINE_BYTES} bytes")
        return any(line.startswith(b"data:") and self._on_data(line[5:].strip()) for line in lines)


def parse_json(data: bytes) -> Any:
    """Parse what an engine sent. Raises `AnswerInvalid`."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise AnswerInvalid(f"it sent invalid JSON: {excerpt(data)}") from None
