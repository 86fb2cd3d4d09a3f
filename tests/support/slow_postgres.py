"""A relay in front of a PostgreSQL server that delays each answer of it."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass
class SlowPostgres:
    """A relay; its clients use `url`."""

    url: str
    delay_s: float = 0.0
    """How long each answer takes more; it can change at any time."""
    _closed: threading.Event = field(default_factory=threading.Event)

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Copy bytes both ways until one side is closed."""
        with client, server:
            asking = threading.Thread(target=self._copy, args=(client, server))
            asking.start()
            self._copy(server, client, is_answer=True)
            asking.join()

    def _copy(
        self, source: socket.socket, target: socket.socket, *, is_answer: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_answer and self.delay_s:
                    self._closed.wait(self.delay_s)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Delay no more."""
        self._closed.set()


@contextmanager
def run_slow_postgres(url: str) -> Iterator[SlowPostgres]:
    """Run a relay in front of the server of a database, which listens on a socket in a folder."""
    parts = urlsplit(url)
    path = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        slow = SlowPostgres(f"postgresql://postgres@127.0.0.1:{port}{parts.path}")

        serving: list[threading.Thread] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, server = listener.accept()[0], socket.socket(socket.AF_UNIX)
                    server.connect(path)
                    serving.append(threading.Thread(target=slow.serve, args=(client, server)))
                    serving[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield slow
        finally:
            slow.close()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *serving):
                thread.join()
