"""What the use cases of files and uploads need from the database."""

from datetime import datetime
from typing import Protocol

from control_svc.domain.files import File, FilePurpose
from control_svc.domain.listing import Window
from control_svc.domain.uploads import Taken, Upload, UploadPart


class FileRepository(Protocol):
    """The rows of files."""

    async def add(self, project: str, file: File) -> None:
        """Keep a new file."""

    async def get(self, project: str, file_id: str, now: datetime) -> File:
        """Raises FileNotFound, also for a file that has expired."""

    async def page(
        self, project: str, window: Window, purpose: FilePurpose | None, now: datetime
    ) -> list[File]:
        """The files of a window that have not expired; `purpose` None: any."""

    async def delete(self, project: str, file_id: str, now: datetime) -> File:
        """Forget a file; its bytes are the caller's to delete. Raises FileNotFound."""


class UploadRepository(Protocol):
    """The rows of uploads and their parts."""

    async def add(self, project: str, upload: Upload) -> None:
        """Keep a new upload."""

    async def get(self, project: str, upload_id: str) -> Upload:
        """Raises UploadNotFound."""

    async def lock(self, project: str, upload_id: str) -> Upload:
        """As `get`; until the end of the transaction nobody else changes the upload."""

    async def update(self, project: str, upload: Upload) -> None:
        """Keep what has changed of a locked upload: its state and its file."""

    async def add_part(self, project: str, part: UploadPart) -> None:
        """Keep a new part."""

    async def taken(self, project: str, upload_id: str) -> Taken:
        """How many parts there are, and their bytes."""

    async def parts(self, project: str, upload_id: str) -> list[UploadPart]:
        """The parts, oldest first."""

    async def drop_parts(self, project: str, upload_id: str) -> list[str]:
        """Forget all parts; the keys of their bytes, which are the caller's to delete."""
