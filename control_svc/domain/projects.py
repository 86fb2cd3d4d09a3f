"""Projects: whose an object is, and whether its keys work.

Objects name their project without a row of it here having to be: a project may be known to a key in
some service's settings alone. What is listed here is what keys of the database can belong to.
"""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_svc.domain.checks import check_request_id, check_text
from svc_kit.errors import InvalidField, MissingField, ProjectArchived, ProjectNotFound
from svc_kit.principal import DEFAULT_PROJECT

_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Project:
    """Whose an object is."""

    id: str
    display_name: str
    created_at: datetime
    archived_at: datetime | None = None

    def check_active(self) -> None:
        """Raises ProjectArchived."""
        if self.archived_at is not None:
            raise ProjectArchived(project=self.id)

    def archive(self, now: datetime) -> "Project":
        """The project closed; a second time changes nothing. Raises InvalidField."""
        if self.id == DEFAULT_PROJECT:
            problem = "callers without a key belong to it, so it cannot be archived"
            raise InvalidField(field="project_id", problem=problem)
        return self if self.archived_at is not None else replace(self, archived_at=now)


@dataclass(frozen=True, kw_only=True)
class NewProject:
    """What an operator says of a project."""

    id: str
    display_name: str = ""
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, TooLong or InvalidField."""
        if not self.id:
            raise MissingField(field="project_id")
        if not _ID.fullmatch(self.id):
            problem = (
                'it is not 1 to 63 lower-case letters, digits, ".", "_" and "-", the first a letter'
                " or digit"
            )
            raise InvalidField(field="project_id", problem=problem)
        if self.display_name:
            check_text("display_name", self.display_name)
        check_request_id(self.request_id)


def check_form(project_id: str) -> None:
    """What is no id is not asked for: a database may refuse its characters.

    Raises MissingField or ProjectNotFound.
    """
    if not project_id:
        raise MissingField(field="project_id")
    if not _ID.fullmatch(project_id):
        raise ProjectNotFound(project=project_id)
