"""Tests of the adapter cache: integrity, concurrency and size limit."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from inference_svc.adapter_sync.cache import AdapterCache
from svc_kit.errors import AdapterDigestMismatch, AdapterTooLarge, UpstreamUnavailable


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def chunks(*pieces: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if error is not None:
        raise error


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    """A cache of ten bytes."""
    cache = AdapterCache(tmp_path / "cache", 10)
    cache.open()
    return cache


async def store(cache: AdapterCache, content: bytes, desired: Collection[bytes] = ()) -> Path:
    """Store bytes while others are desired."""
    digests = {sha256(each) for each in desired}
    return await cache.store("voice", sha256(content), len(content), chunks(content), digests)


async def test_a_stored_file_is_found_by_its_digest(cache: AdapterCache) -> None:
    """Until it is deleted."""
    path = await store(cache, b"abc")

    assert cache.find(sha256(b"abc")) == path
    assert path.read_bytes() == b"abc"
    cache.delete(sha256(b"abc"))
    assert cache.find(sha256(b"abc")) is None


async def test_wrong_bytes_and_broken_streams_leave_no_file(
    cache: AdapterCache, tmp_path: Path
) -> None:
    """Incomplete files of a crashed process are removed at the next start."""
    with pytest.raises(AdapterDigestMismatch):
        await cache.store("voice", sha256(b"abc"), 3, chunks(b"abd"), ())
    broken = chunks(b"a", error=UpstreamUnavailable(service="control"))
    with pytest.raises(UpstreamUnavailable):
        await cache.store("voice", sha256(b"abc"), 3, broken, ())
    assert list((tmp_path / "cache").iterdir()) == []

    (tmp_path / "cache" / "incoming-0123456789abcdef").write_bytes(b"a")
    cache.open()
    assert list((tmp_path / "cache").iterdir()) == []


async def test_concurrent_stores_of_a_digest_download_it_once(cache: AdapterCache) -> None:
    """Its size is counted once; if the first download fails, the next caller downloads it."""
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
    waiting = [asyncio.create_task(fetch(name)) for name in ("second", "third")]
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(AdapterDigestMismatch):
        await first
    paths = await asyncio.gather(*waiting)

    assert paths == [cache.find(sha256(content))] * 2
    assert sent == ["first", "second"]


async def test_the_least_recently_used_file_is_evicted_unless_desired(
    cache: AdapterCache,
) -> None:
    """An adapter that does not fit beside the desired ones is refused."""
    old, used, desired = b"old!", b"use", b"des"
    for age, content in enumerate((old, used, desired)):
        os.utime(await store(cache, content), (age, age))
    await store(cache, b"new", [desired])

    assert cache.find(sha256(old)) is None
    assert all(cache.find(sha256(each)) for each in (used, desired, b"new"))
    with pytest.raises(AdapterTooLarge) as refused:
        await store(cache, b"12345678", [desired])
    assert (refused.value.needed_bytes, refused.value.available_bytes) == (8, 7)
