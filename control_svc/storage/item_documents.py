"""Items as documents: JSON, of which operators can make sense with SQL alone."""

from typing import Final

from pydantic import ConfigDict, TypeAdapter

from control_svc.domain.items import Content

# The bytes of a token need not be text.
_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_CONTENT: Final[TypeAdapter[Content]] = TypeAdapter(Content, config=_BYTES)


def document_of(content: Content) -> bytes:
    """The document of a content."""
    return _CONTENT.dump_json(content, exclude_defaults=False)


def content_of(document: bytes) -> Content:
    """The content of a document that `document_of` made, in this release or an earlier one."""
    return _CONTENT.validate_json(document)
