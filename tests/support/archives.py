"""The archive of an inference service that keeps nothing."""

from datetime import UTC, datetime
from typing import Final

from control_svc.domain.ids import IdSource
from control_svc.usecases.archives import Archives

NO_ARCHIVE: Final = Archives(IdSource(lambda: datetime.now(UTC)), is_used=False)
