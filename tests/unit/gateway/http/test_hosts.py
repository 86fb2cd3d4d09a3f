"""Allowed hosts and origins."""

import pytest

from gateway.http.hosts import HostPolicy
from svc_kit.errors import HostNotAllowed, OriginNotAllowed

LOOPBACK = HostPolicy.create("127.0.0.1", [], [])
NAMED = HostPolicy.create("192.168.1.5", ["LLM.example"], ["https://Chat.example/"])
EVERYWHERE = HostPolicy.create("0.0.0.0", [], [])
INTERNAL = HostPolicy.create("127.0.0.1", ["*.Internal"], [])
OPEN = HostPolicy.create("127.0.0.1", ["*"], ["*"])


@pytest.mark.parametrize(
    ("policy", "host"),
    [
        (LOOPBACK, "localhost"),
        (LOOPBACK, "LOCALHOST:8080"),
        (LOOPBACK, "localhost."),
        (LOOPBACK, "127.0.0.1:8080"),
        (LOOPBACK, "127.8.8.8"),
        (LOOPBACK, "[::1]:8080"),
        (LOOPBACK, "chat.localhost:8080"),
        (LOOPBACK, "a.b.LOCALHOST."),
        (INTERNAL, "host.docker.internal:8080"),
        (INTERNAL, "LLM.internal"),
        (NAMED, "192.168.1.5:8080"),
        (NAMED, "llm.example"),
        (NAMED, "localhost"),
        (EVERYWHERE, "10.1.2.3:8080"),
        (EVERYWHERE, "[fe80::1]:8080"),
        (HostPolicy.create("::", [], []), "10.1.2.3"),
        (HostPolicy.create("box", [], []), "box:8080"),
        (OPEN, "evil.example"),
    ],
)
def test_allowed_hosts(policy: HostPolicy, host: str) -> None:
    """Loopback, the listen address and configured names, with any port and in any case."""
    policy.check(host, None)


@pytest.mark.parametrize(
    ("policy", "host"),
    [
        (LOOPBACK, None),
        (LOOPBACK, ""),
        (LOOPBACK, "evil.example"),
        (LOOPBACK, "localhost.evil.example"),
        (LOOPBACK, "evil.example#localhost"),
        (LOOPBACK, "localhost@evil.example"),
        (LOOPBACK, "127.0.0.1.evil.example"),
        (LOOPBACK, "10.1.2.3"),
        (LOOPBACK, "localhost:port"),
        (LOOPBACK, "localhost:8080, evil.example"),
        (LOOPBACK, "[::2]"),
        (LOOPBACK, "0.0.0.0"),
        (LOOPBACK, "evillocalhost"),
        (LOOPBACK, "chat.localhost.evil.example"),
        (LOOPBACK, "host.docker.internal"),
        (INTERNAL, "internal"),
        (INTERNAL, "evilinternal"),
        (INTERNAL, "llm.internal.evil.example"),
        (EVERYWHERE, "evil.example"),
        (NAMED, "sub.llm.example"),
        (OPEN, "two words"),
    ],
)
def test_rejected_hosts(policy: HostPolicy, host: str | None) -> None:
    """Foreign, similar and malformed names."""
    with pytest.raises(HostNotAllowed):
        policy.check(host, None)


@pytest.mark.parametrize(
    ("policy", "host", "origin"),
    [
        (LOOPBACK, "localhost:8080", "http://localhost:8080"),
        (LOOPBACK, "localhost:8080", "http://127.0.0.1:3000"),
        (LOOPBACK, "localhost:8080", "http://[::1]"),
        (LOOPBACK, "chat.localhost:8080", "http://chat.localhost:8080"),
        (NAMED, "llm.example", "https://llm.example"),
        (NAMED, "localhost", "https://chat.example"),
        (NAMED, "localhost", "HTTPS://CHAT.example"),
        (OPEN, "localhost", "https://evil.example"),
        (OPEN, "localhost", "null"),
    ],
)
def test_allowed_origins(policy: HostPolicy, host: str, origin: str) -> None:
    """The server itself, loopback pages and configured sites."""
    policy.check(host, origin)


@pytest.mark.parametrize(
    ("policy", "host", "origin"),
    [
        (LOOPBACK, "localhost", "https://evil.example"),
        (LOOPBACK, "localhost", "null"),
        (LOOPBACK, "localhost", ""),
        (LOOPBACK, "localhost", "file://localhost"),
        (LOOPBACK, "localhost", "http://localhost.evil.example"),
        (LOOPBACK, "localhost", "http://user@localhost"),
        (LOOPBACK, "localhost", "http://[localhost"),
        (LOOPBACK, "chat.localhost:8080", "http://other.localhost:8080"),
        (EVERYWHERE, "10.1.2.3:8080", "http://10.1.2.3:9999"),
        (NAMED, "llm.example", "https://llm.example:444"),
        (NAMED, "localhost", "http://chat.example"),
    ],
)
def test_rejected_origins(policy: HostPolicy, host: str, origin: str) -> None:
    """Other sites, other ports of a public name, opaque and malformed origins."""
    with pytest.raises(OriginNotAllowed):
        policy.check(host, origin)
