"""Render docs/reference/errors.md from the error classes, the status table and the proto."""

import re
from pathlib import Path

from svc_kit.errors import ERROR_CLASSES, KINDS, DomainError, kind_of
from svc_kit.errors.status import DOMAIN, OPENAI_CODES, status_row

PROTO = Path(__file__).resolve().parent.parent / "protos/corral/error/v1/error_reason.proto"

HEAD = f"""# Errors

<!-- Written by tools/generate_docs.py; run `make docs` after a change of the code. -->

Every failed call says why in a form that programs can act on. Over gRPC the trailers carry
`google.rpc.ErrorInfo` with the reason, the domain `{DOMAIN}` and the metadata named below. With it
come `RequestInfo` (the id under which the log knows the call), `BadRequest` where a field is at
fault, and `RetryInfo` where a retry can help. Over HTTP the body is OpenAI's envelope: `message`,
`type`, `param` (the field) and `code`; where a retry can help, the header `Retry-After` says when.

"Retry" says whether the same request can succeed later. An `INTERNAL` error never says what
happened; the server's log does, under the request id. A code in italics depends on the metadata.

## Kinds

The kind decides the statuses; a reason in brackets has a more exact HTTP status of its own.
"""


def render() -> str:
    """Return the page as Markdown."""
    meanings = read_meanings()
    parts = [HEAD, *_kinds()]
    for kind in KINDS:
        parts += ["", f"## {status_row(kind).grpc_code.name}", "", *_reasons(kind, meanings)]
    return "\n".join(parts) + "\n"


def read_meanings() -> dict[str, str]:
    """Read the comment of each `ErrorReason` value, without its list of metadata keys."""
    meanings = {}
    pattern = r"((?:  //[^\n]*\n)+)  ERROR_REASON_(\w+) ="
    for comment, reason in re.findall(pattern, PROTO.read_text(encoding="utf-8")):
        text = " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
        meaning = text.partition(f"ERROR_REASON_{reason}:")[2].partition(" Metadata:")[0]
        meanings[reason] = meaning.strip().rstrip(".").replace("|", "\\|")
    return meanings


def _kinds() -> list[str]:
    lines = [
        "| Kind | gRPC | HTTP | OpenAI `type` | Retry | Meaning |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        row = status_row(kind)
        exact = [
            f"{status_row(cls).http_status} [{cls.reason}]"
            for cls in _classes(kind)
            if status_row(cls).http_status != row.http_status
        ]
        cells = (
            kind.__name__,
            row.grpc_code.name,
            ", ".join([str(row.http_status), *exact]),
            f"`{row.openai_type}`",
            "yes" if row.retryable else "no",
            (kind.__doc__ or "").rstrip("."),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _reasons(kind: type[DomainError], meanings: dict[str, str]) -> list[str]:
    lines = ["| Reason | HTTP | OpenAI `code` | Metadata | Meaning |", "|---|---|---|---|---|"]
    for cls in _classes(kind):
        keys = ", ".join(f"`{key}`" for key in cls.metadata_keys())
        cells = (
            f"`{cls.reason}`",
            str(status_row(cls).http_status),
            _code(cls.reason),
            keys or "none",
            meanings[cls.reason],
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _classes(kind: type[DomainError]) -> list[type[DomainError]]:
    classes = (cls for cls in ERROR_CLASSES if kind_of(cls) is kind)
    return sorted(classes, key=lambda cls: cls.reason)


def _code(reason: str) -> str:
    code = OPENAI_CODES.get(reason, reason.lower())
    if callable(code):
        return "*by the value*"
    return "null" if code is None else f"`{code}`"
