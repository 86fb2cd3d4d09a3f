"""The format of a model's content that a caller asks for."""

from dataclasses import dataclass
from enum import StrEnum


class OutputFormatKind(StrEnum):
    """The notation of an output format."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"
    CHOICES = "choices"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of the content. `field` names it in errors; the text of choices is a JSON
    array."""

    kind: OutputFormatKind
    text: str
    field: str
