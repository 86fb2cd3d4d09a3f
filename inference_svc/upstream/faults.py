"""What engines do wrong. The messages are for operators; callers get typed errors instead."""

from typing import Final

MAX_TEXT: Final = 300
"""Characters of an engine's own text in a message."""
MAX_OVERLOAD_S: Final = 600.0
"""How long an engine may be overloaded without a pause, before it counts as lost."""

_RETRY_AFTER_S: Final = 1.0
_TOO_LONG: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""Codes and types of errors for prompts beyond the context, of OpenAI, Corral and llama-server."""


def excerpt(data: bytes | str) -> str:
    """The beginning of what an engine sent, for the log."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    return repr(text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…")


class EngineFault(Exception):
    """The engine at one URL failed; another one may be asked."""


class EngineLost(EngineFault):
    """It cannot be reached, cut its answer, or was silent for too long."""


class TlsRefused(EngineLost):
    """Its certificate is not accepted (expired, of another name or authority), or its TLS."""


class RequestFailed(EngineLost):
    """It answered with an error of its own (500): the request may be the reason, or the engine."""


class AnswerInvalid(EngineFault):
    """It answered what no engine may: another format, a redirect, ids that do not exist."""


class TokensMissing(AnswerInvalid):
    """It answered without token ids."""


class EngineOverloaded(EngineFault):
    """It asks to be left alone, for `retry_after_s`, or does not say for how long."""

    def __init__(self, problem: str, retry_after_s: float | None = None) -> None:
        super().__init__(problem)
        self.has_said_when = retry_after_s is not None
        self.retry_after_s = retry_after_s or _RETRY_AFTER_S


class RequestRefused(EngineFault):
    """It does not accept this request, and is healthy otherwise. Only a `status` of 400 or 422 may
    be for what the request has in it; `error` is what its JSON says."""

    def __init__(self, problem: str, status: int, error: object = None) -> None:
        super().__init__(problem)
        self.may_be_content = status in (400, 422)
        details = error if isinstance(error, dict) else {}
        kinds = (details.get("code"), details.get("type"))
        self.is_too_long = not _TOO_LONG.isdisjoint(map(str, kinds))
        is_unknown = details.get("code") == "unsupported_parameter"
        self.unknown_field = str(details.get("param")) if is_unknown else ""


class EngineUnusable(EngineFault):
    """It can never be used as it is configured: 401, another model, another vocabulary."""
