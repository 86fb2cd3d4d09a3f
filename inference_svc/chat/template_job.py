"""Renders chat templates. Runs only in a limited child process (`svc_kit.sandbox`).

A template is an untrusted program from a model file. Jinja's sandbox denies access to Python's
internals; the child process limits time and memory. The environment is that of transformers'
`apply_chat_template`: trimmed blocks, `break` and `continue`, a `tojson` that neither sorts keys
nor escapes HTML, `raise_exception`, `strftime_now`, and `{% generation %}` as a tag without effect.
As in llama.cpp, templates may also change lists, write the result of `map` as JSON, and read the
date from variables; nothing is escaped beside a text marked as `safe`.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from inference_svc.chat.template_adapters import adapt, thinking_variables
from inference_svc.chat.template_capabilities import Capabilities, detect_capabilities
from svc_kit.sandbox.jobs import JobRefused

_MAX_OUTPUT_CHARACTERS = 16 << 20
_MAX_CACHED_TEMPLATES = 32
_PROBE_TIME = datetime(2025, 1, 1, tzinfo=UTC)


def render(payload: dict[str, Any]) -> dict[str, Any]:
    """Render one prompt.

    `payload` has "template", "now" (ISO time for `strftime_now`), "thinking" (whether reasoning is
    enabled, and its effort; each may be None) and "variables", with "messages", "tools" and other
    variables of the template. The result has "text", and the template's `Capabilities`.

    Raises:
        JobRefused: The template is invalid or refused the messages.
    """
    template, capabilities = _prepare(payload["template"])
    enabled, effort = payload["thinking"]
    thinking = thinking_variables(enabled, effort, capabilities)
    now = datetime.fromisoformat(payload["now"])
    variables = thinking | adapt(payload["variables"], capabilities)
    try:
        text = _output(template, variables, now)
    except _REFUSALS as problem:
        raise JobRefused(_describe(problem)) from None
    return {"text": text, **capabilities._asdict()}


# Errors of Python operations in a template. Errors of exhausted limits (memory, recursion) are not
# among them.
_REFUSALS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
)


class _GenerationTag(Extension):
    """Ignores `{% generation %}…{% endgeneration %}`, which marks assistant text for training."""

    tags = {"generation"}  # noqa: RUF012 (declared like this by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def build_environment() -> Environment:
    environment = SandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    environment.filters["tojson"] = _to_json
    environment.filters["safe"] = str
    environment.globals["raise_exception"] = _raise_exception
    return environment


@lru_cache(maxsize=_MAX_CACHED_TEMPLATES)
def _prepare(source: str) -> tuple[Template, Capabilities]:
    try:
        template = build_environment().from_string(source)
    except TemplateSyntaxError as problem:
        raise JobRefused(f"line {problem.lineno}: {problem.message}") from None
    except _REFUSALS as problem:
        raise JobRefused(_describe(problem)) from None

    def attempt(variables: dict[str, Any]) -> str:
        try:
            return _output(template, deepcopy(variables), _PROBE_TIME)
        except (*_REFUSALS, JobRefused):
            return ""

    return template, detect_capabilities(attempt)


def _output(template: Template, variables: dict[str, Any], now: datetime) -> str:
    dates = {
        "strftime_now": now.strftime,
        "date_string": now.strftime("%d %b %Y"),
        "datetime": now.strftime("%b %d %Y"),
    }
    pieces: list[str] = []
    length = 0
    for piece in template.generate(**(dates | variables)):
        pieces.append(piece)
        length += len(piece)
        if length > _MAX_OUTPUT_CHARACTERS:
            raise JobRefused(f"its output is over {_MAX_OUTPUT_CHARACTERS} characters")
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JobRefused("its output is not valid Unicode (a lone surrogate)") from None
    return text


def _describe(problem: Exception) -> str:
    if isinstance(problem, SecurityError):
        return f"forbidden operation: {problem}"
    if isinstance(problem, TemplateError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_to_list,
    )


def _to_list(value: Any) -> list[Any]:
    if isinstance(value, Iterator):  # the result of a filter such as `map`
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
