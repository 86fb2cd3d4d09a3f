"""Records what clients ask and are told, as `tools/check_history.py` reads it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import httpx

from tools.check_history import Violation, check, parse

PATIENCE_S: Final = 300.0
"""How long a client repeats a call, and waits for the end of what it has begun."""
ATTEMPT_S: Final = 20.0
"""How long it waits for a gateway, which may be stopped."""
PAUSE_S: Final = 0.3
_REPEATED: Final = (408, 409, 429)


class Served(Protocol):
    """What has gateways."""

    @property
    def apis(self) -> Sequence[str]:
        """Their base URLs."""


@dataclass
class Pending:
    """An operation that has not ended: what its end will say."""

    told: Any = None
    outcome: str = "ok"


class History:
    """A file to which the clients of this process write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = count(1)

    def new_process(self, name: str) -> str:
        return f"{name}-{next(self._numbers)}"

    @contextmanager
    def operation(self, process: str, f: str, key: str, value: Any = None) -> Iterator[Pending]:
        """Write the invocation and the end, which is unknown if the body raises."""
        pending = Pending()
        about = {"process": process, "f": f, "key": key}
        self._write(about, "invoke", value)
        try:
            yield pending
        except BaseException:
            pending.outcome = "unknown"
            raise
        finally:
            self._write(about, pending.outcome, pending.told)

    def observe(self, process: str, f: str, key: str, value: Any = None, told: Any = None) -> None:
        """Write an operation that takes no time."""
        with self.operation(process, f, key, value) as pending:
            pending.told = told

    def observe_text(self, process: str, key: str, text: str) -> None:
        """Write a whole answer, as a stream with one event."""
        reading = {"after": -1, "events": [[0, text]], "is_ended": True}
        self.observe(process, "follow", key, told=reading)

    def check(self) -> list[Violation]:
        """The violations up to now."""
        with self.path.open(encoding="utf-8") as lines:
            return check(parse(lines))

    def _write(self, about: Mapping[str, str], type_: str, value: Any) -> None:
        times = {"wall": time.time(), "monotonic": time.monotonic()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"type": type_, **about, **times, "value": value}) + "\n")


class Client:
    """An HTTP client that asks one gateway after the other until one answers."""

    def __init__(self, http: httpx.AsyncClient, apis: Sequence[str], first: int) -> None:
        self._http = http
        self._apis = apis
        self._turn = first

    def _url(self, path: str) -> str:
        """At the next gateway."""
        self._turn += 1
        return f"{self._apis[self._turn % len(self._apis)]}/{path}"

    async def call(self, method: str, path: str, **fields: Any) -> httpx.Response:
        """The first answer that is not about the service itself.

        All attempts have one idempotency key. Raises TimeoutError after `PATIENCE_S`.
        """
        headers = {"idempotency-key": uuid4().hex}
        deadline, problem = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < deadline:
            try:
                answer = await self._http.request(
                    method, self._url(path), headers=headers, **fields
                )
            except httpx.TransportError as error:
                problem = repr(error)
            else:
                if answer.status_code < 500 and answer.status_code not in _REPEATED:
                    return answer
                problem = f"{answer.status_code} {answer.text}"
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError(f"{method} {path}: {problem}")

    async def get(self, path: str, **params: Any) -> Any:
        """The object at a path. Raises HTTPStatusError."""
        return (await self.call("GET", path, params=params)).raise_for_status().json()

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The object that is created. Raises HTTPStatusError."""
        return (await self.call("POST", path, json=body)).raise_for_status().json()

    async def pages(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """All objects of a list."""
        found: list[dict[str, Any]] = []
        has_more = True
        while has_more:
            after = {"after": found[-1]["id"]} if found else {}
            page = await self.get(path, limit=100, order="asc", **params, **after)
            found += page["data"]
            has_more = page["has_more"]
        return found

    async def events(self, method: str, path: str, **fields: Any) -> AsyncIterator[str]:
        """The data of server-sent events, of one attempt. Raises httpx.HTTPError."""
        async with self._http.stream(method, self._url(path), **fields) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")


@asynccontextmanager
async def connect_client(served: Served, first: int = 0) -> AsyncIterator[Client]:
    """A client that begins with that gateway."""
    async with httpx.AsyncClient(timeout=ATTEMPT_S, trust_env=False) as http:
        yield Client(http, served.apis, first)
