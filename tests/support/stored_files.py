"""A source of files in memory, for turns and lines of batches."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dialects.shared.media import FileReference, StoredFile
from svc_kit.errors import FileNotFound


@dataclass
class MemoryFiles:
    """A `FileSource` of these files, by id."""

    files: Mapping[str, StoredFile] = field(default_factory=dict)

    @asynccontextmanager
    async def open(
        self, project: str, references: Sequence[FileReference]
    ) -> AsyncIterator[Mapping[str, StoredFile]]:
        """Yield all files. Raises FileNotFound."""
        for path, file_id in references:
            if file_id not in self.files:
                raise FileNotFound(file=file_id, field=path)
        yield self.files
