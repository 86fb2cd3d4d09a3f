"""Bytes of adapters on disk: whole, checked, and no more than there may be."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference_svc.adapter_sync.cache import AdapterCache
from svc_kit.errors import AdapterDigestMismatch, AdapterTooLarge, UpstreamUnavailable


def sha256(content: bytes) -> str:
    """Its name in the cache."""
    return hashlib.sha256(content).hexdigest()


async def chunks(*pieces: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    """Pieces that come, and what ends them."""
    for piece in pieces:
        yield piece
    if error is not None:
        raise error


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    """Room for ten bytes."""
    made = AdapterCache(tmp_path / "cache", 10)
    made.open()
    return made


async def store(cache: AdapterCache, content: bytes, wanted: set[bytes] = frozenset()) -> Path:  # type: ignore[assignment]  # an empty set
    """Keep bytes beside others that are wanted."""
    digests = {sha256(each) for each in wanted}
    return await cache.store("voice", sha256(content), len(content), chunks(content), digests)


async def test_what_was_stored_is_found(cache: AdapterCache) -> None:
    """Under its digest; what was dropped is not."""
    path = await store(cache, b"abc")

    assert cache.find(sha256(b"abc")) == path
    assert path.read_bytes() == b"abc"
    cache.drop(sha256(b"abc"))
    assert cache.find(sha256(b"abc")) is None


async def test_other_bytes_and_broken_streams_leave_nothing(
    cache: AdapterCache, tmp_path: Path
) -> None:
    """Half a file is never found; one of a process that died goes at the next start."""
    with pytest.raises(AdapterDigestMismatch):
        await cache.store("voice", sha256(b"abc"), 3, chunks(b"abd"), ())
    broken = chunks(b"a", error=UpstreamUnavailable(service="control"))
    with pytest.raises(UpstreamUnavailable):
        await cache.store("voice", sha256(b"abc"), 3, broken, ())
    assert list((tmp_path / "cache").iterdir()) == []

    (tmp_path / "cache" / "incoming-1").write_bytes(b"a")
    cache.open()
    assert list((tmp_path / "cache").iterdir()) == []


async def test_the_same_bytes_come_once(cache: AdapterCache) -> None:
    """Two adapters that want them at once have room for them once; where the one that fetches them
    fails, the other does."""
    content, began, gate = b"123456", asyncio.Event(), asyncio.Event()
    sent: list[str] = []

    async def slowly(name: str, piece: bytes) -> AsyncIterator[bytes]:
        sent.append(name)
        began.set()
        await gate.wait()
        yield piece

    async def fetch(name: str, piece: bytes = content) -> Path:
        chunks = slowly(name, piece)
        return await cache.store(name, sha256(content), len(content), chunks, ())

    first = asyncio.create_task(fetch("first", b"broken"))
    await began.wait()
    others = [asyncio.create_task(fetch(name)) for name in ("second", "third")]
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(AdapterDigestMismatch):
        await first
    paths = await asyncio.gather(*others)

    assert paths == [cache.find(sha256(content))] * 2
    assert sent == ["first", "second"]


async def test_the_least_recently_used_that_nobody_wants_makes_room(cache: AdapterCache) -> None:
    """Wanted ones stay; where they leave no room the adapter is refused."""
    old, used, wanted = b"old!", b"use", b"wan"
    for age, content in enumerate((old, used, wanted)):
        os.utime(await store(cache, content), (age, age))
    await store(cache, b"new", {wanted})

    assert cache.find(sha256(old)) is None
    assert all(cache.find(sha256(each)) for each in (used, wanted, b"new"))
    with pytest.raises(AdapterTooLarge) as refused:
        await store(cache, b"12345678", {wanted})
    assert (refused.value.needed_bytes, refused.value.available_bytes) == (8, 7)
