"""The report of ignored parameters: started for each request, and sent as a header."""

import re
from typing import Final

from starlette.datastructures import Headers

from dialects.shared.parameters import ParameterReport, parameter_report
from svc_kit.errors import InvalidField

STRICT_HEADER: Final = "x-corral-strict-parameters"
_IGNORED_HEADER: Final = b"x-corral-ignored"
_MAX_NAMES: Final = 64
_MAX_NAME_CHARACTERS: Final = 100
_UNSAFE: Final = re.compile(r"[^\w.\[\]-]", re.ASCII)


def start_report(headers: Headers, *, strict: bool) -> ParameterReport:
    """Start the report of a request. `strict` is the setting, which the header overrides.

    Raises InvalidField for a header that is neither true nor false.
    """
    value = headers.get(STRICT_HEADER, str(strict)).lower()
    if value not in ("true", "false"):
        raise InvalidField(field=STRICT_HEADER, problem="it must be 'true' or 'false'")
    report = ParameterReport(strict=value == "true")
    parameter_report.set(report)
    return report


def ignored_headers(report: ParameterReport | None) -> list[tuple[bytes, bytes]]:
    """The header that names ignored parameters; none if there are none. Names that callers chose
    are shortened."""
    if report is None or not report.names:
        return []
    names = [_UNSAFE.sub("_", name)[:_MAX_NAME_CHARACTERS] for name in report.names[:_MAX_NAMES]]
    return [(_IGNORED_HEADER, ", ".join(names).encode())]
