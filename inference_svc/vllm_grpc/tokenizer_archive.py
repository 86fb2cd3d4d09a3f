"""The files of a model's tokenizer in Hugging Face's format, as an archive for routers.

A router tokenizes prompts with them, so their vocabulary must be the model's: both are compared on
the texts with which upstreams are compared.
"""

import asyncio
import hashlib
import io
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, Self
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from inference_svc.models.hf_folder import HfFolder
from inference_svc.upstream.probe import describe_difference, vocabulary_texts
from inference_svc.vocabularies import ModelVocabulary
from model_files.gguf import ModelFileInvalid
from svc_kit.lifecycle import StartupError

CHUNK_BYTES: Final = 64 * 1024
OpenVocabulary = Callable[[Path], Awaitable[ModelVocabulary]]


class TokenizerArchive(NamedTuple):
    """A ZIP archive. Equal files make equal archives."""

    data: bytes
    sha256: str

    @classmethod
    async def read(cls, folder: Path) -> Self:
        """Read the files of a folder. Raises `StartupError`."""
        try:
            return await asyncio.to_thread(cls._read, folder)
        except (ModelFileInvalid, OSError) as error:
            raise StartupError(f"tokenizer {folder}: {error}") from None

    @classmethod
    def _read(cls, folder: Path) -> Self:
        target = io.BytesIO()
        with ZipFile(target, "w", ZIP_DEFLATED) as archive:
            for path in HfFolder.read(folder).files:
                archive.writestr(ZipInfo(path.name), path.read_bytes(), ZIP_DEFLATED)
        data = target.getvalue()
        return cls(data, hashlib.sha256(data).hexdigest())

    def chunks(self) -> list[bytes]:
        """Its parts, each of at most `CHUNK_BYTES`; at least one."""
        return [
            self.data[start : start + CHUNK_BYTES]
            for start in range(0, len(self.data), CHUNK_BYTES)
        ]


async def check_tokenizer(model: Path, folder: Path, open_vocabulary: OpenVocabulary) -> None:
    """Compare the vocabulary of a model's file with that of a folder. Raises `StartupError` with
    the text and both ids at the first token that differs, and like `open_vocabulary`."""
    with closing(await open_vocabulary(model)) as own, closing(await open_vocabulary(folder)) as hf:
        await asyncio.to_thread(_compare, own, hf)


def _compare(own: ModelVocabulary, other: ModelVocabulary) -> None:
    for text in vocabulary_texts(own):
        expected, tokens = (
            each.tokenize(text, add_special=False, parse_special=True) for each in (own, other)
        )
        if expected != tokens:
            raise StartupError(describe_difference(text, tokens, expected))
