"""Turns files of callers into vectors for a model: decodes, encodes, and keeps the results.

A file that was seen before costs neither: it is found by the digest of its bytes. Several requests
with one new file encode it once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from inference_svc.engine.media import MediaKind
from inference_svc.media.decoder import ImageSize, MediaDecoder
from inference_svc.media.encoded_cache import CacheEntry, CacheKey, EncodedCache, VectorFolder
from inference_svc.media.encoder import Encoder
from inference_svc.media.encoder_messages import EncoderReady
from inference_svc.media.model import DecodedImage, DecodedMedia, EncodedMedia, VectorChunk
from svc_kit.errors import DomainError, EngineRestarting, InvalidField, TooLong

_INLINE_BYTES: Final = 256 * 1024
"""To hash more takes more than half a millisecond."""
CheckRequest = Callable[[], Awaitable[None]]
"""Raises what refuses a request whatever its files are."""


@dataclass(frozen=True, slots=True)
class MediaInput:
    """A file of a caller; errors name its `field`."""

    field: str
    kind: MediaKind
    data: bytes
    is_low_detail: bool = False


@dataclass(frozen=True, slots=True)
class MediaLease:
    """Encoded media whose vectors stay until `release`, which may be called repeatedly."""

    media: tuple[EncodedMedia, ...]
    _release: Callable[[], None]

    def release(self) -> None:
        """Let the vectors be deleted."""
        self._release()


@dataclass(eq=False, slots=True)
class _Work:
    """The task that encodes a file, and how many requests wait for it."""

    task: asyncio.Task[CacheEntry]
    num_waiters: int = field(default=0)


class MediaProcessor:
    """Encodes the pictures and sounds of a model's requests. Call all methods on the event loop.

    `owner` in its methods is the project or group of projects that shares cached prefixes.
    """

    def __init__(
        self, encoder: Encoder, decoder: MediaDecoder, folder: VectorFolder, max_bytes: int
    ) -> None:
        self.encoder = encoder
        self.cache = EncodedCache(max_bytes)
        self._decoder = decoder
        self._folder = folder
        self._running: dict[CacheKey, _Work] = {}

    async def start(self) -> None:
        """Load the projector. Raises `StartupError`."""
        await self.encoder.start()

    async def close(self, error: DomainError | None = None) -> None:
        """End the encoder and delete all vectors; waiting requests fail with `error`."""
        await self.encoder.close(error)
        self._folder.close()

    @property
    def ready(self) -> EncoderReady:
        """The loaded projector. Raises `EngineRestarting` before it is loaded."""
        if self.encoder.ready is None:
            raise EngineRestarting()
        return self.encoder.ready

    def check(self, inputs: Sequence[MediaInput]) -> None:
        """Raise `InvalidField` for the first file of a kind that the model does not take."""
        for item in inputs:
            takes = (
                self.ready.reads_images if item.kind is MediaKind.IMAGE else self.ready.audio_rate
            )
            if not takes:
                problem = f"the model takes no {item.kind.value} input"
                raise InvalidField(field=item.field, problem=problem)

    async def encode(
        self,
        inputs: Sequence[MediaInput],
        *,
        owner: str,
        project: str,
        check_request: CheckRequest | None = None,
    ) -> MediaLease:
        """Encode files, in order. The encoder is shared fairly between projects.

        `check_request` is called before new files are decoded; what it raises refuses them.

        Raises:
            InvalidField, TooLong: a file cannot be decoded or encoded, or the model does not take
                its kind; the error names its field.
            QueueFull: too many files wait, or those in use leave no room.
        """
        self.check(inputs)
        entries: list[CacheEntry] = []

        def release() -> None:
            while entries:
                self.cache.release(entries.pop())

        keys = await _file_keys(inputs, owner)
        if check_request is not None and any(self.cache.find(key) is None for key in keys):
            await check_request()
        try:
            # One after the other, so that a request holds only one place in the queues.
            for item, key in zip(inputs, keys, strict=True):
                entries.append(await self._find_or_encode(item, key, project))
        except BaseException:
            release()
            raise
        return MediaLease(tuple(entry.media for entry in entries), release)

    async def count(
        self, inputs: Sequence[MediaInput], *, owner: str, project: str
    ) -> list[EncodedMedia]:
        """Return chunks to count tokens, without vectors; new files are decoded, but not encoded.

        Raises like `encode`.
        """
        self.check(inputs)
        result = []
        for item, key in zip(inputs, await _file_keys(inputs, owner), strict=True):
            if (entry := self.cache.find(key)) is not None:
                result.append(entry.media)
                continue
            media = await self._decode(item)
            if isinstance(media, DecodedImage):  # only its size counts
                media = DecodedImage(media.width, media.height, b"")
            chunks = await self.encoder.encode(
                media, media.digest, None, project=project, field=item.field
            )
            result.append(EncodedMedia(item.kind, chunks))
        return result

    async def _find_or_encode(self, item: MediaInput, key: CacheKey, project: str) -> CacheEntry:
        """The entry of an item, which is acquired for the caller."""
        if (entry := self.cache.find(key)) is not None:
            self.cache.stats.hits += 1
            self.cache.acquire(entry)
            return entry
        self.cache.stats.misses += 1
        try:
            entry = await self._share(
                key, lambda: self._decode_and_encode(item, key.owner, project)
            )
        except (InvalidField, TooLong) as error:  # which may name the field of another request
            metadata = error.metadata | {"field": item.field}
            raise type(error).from_metadata(metadata, error.retry_after) from None
        self.cache.add_key(entry, key)
        return entry

    async def _decode_and_encode(self, item: MediaInput, owner: str, project: str) -> CacheEntry:
        media = await self._decode(item)
        digest = await asyncio.to_thread(lambda: media.digest)
        key = CacheKey(owner, digest)
        if (entry := self.cache.find(key)) is not None:  # equal pixels in another file
            self.cache.acquire(entry)
            return entry
        return await self._share(key, lambda: self._encode(item, media, digest, key, project))

    async def _encode(
        self, item: MediaInput, media: DecodedMedia, digest: bytes, key: CacheKey, project: str
    ) -> CacheEntry:
        path = self._folder.new_path()
        chunks = await self.encoder.encode(media, digest, path, project=project, field=item.field)
        joint = [
            chunk for chunk in chunks if isinstance(chunk, VectorChunk) and not chunk.is_causal
        ]
        longest = max((chunk.num_tokens for chunk in joint), default=0)
        if longest > self.ready.joint_tokens:
            path.unlink()
            problem = f"it takes {longest} tokens, at most {self.ready.joint_tokens} are possible"
            raise InvalidField(field=item.field, problem=problem)
        return self.cache.add(key, EncodedMedia(item.kind, chunks), path)

    async def _decode(self, item: MediaInput) -> DecodedMedia:
        if item.kind is MediaKind.IMAGE:
            return await self._decoder.decode_image(
                item.field,
                item.data,
                ImageSize(pixels=self.ready.usable_pixels),
                is_low_detail=item.is_low_detail,
            )
        return await self._decoder.decode_audio(item.field, item.data, self.ready.audio_rate or 0)

    async def _share(
        self, key: CacheKey, make: Callable[[], Coroutine[Any, Any, CacheEntry]]
    ) -> CacheEntry:
        """Run work once for all requests that wait for it at the same time, and acquire the entry
        for each. It is cancelled when the last of them leaves."""
        work = self._running.get(key)
        if work is None:
            work = self._running[key] = _Work(asyncio.create_task(make()))
        work.num_waiters += 1
        try:
            entry = await asyncio.shield(work.task)
            self.cache.acquire(entry)
            return entry
        finally:
            work.num_waiters -= 1
            if not work.num_waiters:
                self._end_work(key, work)

    def _end_work(self, key: CacheKey, work: _Work) -> None:
        """Give up the use of the entry by the work itself."""
        del self._running[key]
        if not work.task.done():
            work.task.cancel()
        elif not work.task.cancelled() and work.task.exception() is None:
            self.cache.release(work.task.result())


async def _file_keys(inputs: Sequence[MediaInput], owner: str) -> list[CacheKey]:
    def hash_files() -> list[CacheKey]:
        return [
            CacheKey(owner, (item.kind, sha256(item.data).digest(), item.is_low_detail))
            for item in inputs
        ]

    is_large = sum(len(item.data) for item in inputs) > _INLINE_BYTES
    return await asyncio.to_thread(hash_files) if is_large else hash_files()
