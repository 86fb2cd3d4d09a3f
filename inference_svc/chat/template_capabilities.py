"""Detects what a chat template supports by rendering probes.

Templates fail silently: some drop system messages or tools, some expect the arguments of a call as
an object, others as text.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_FREE_EFFORTS = ("low", "medium", "high")  # what models are trained with that read any text
_SWITCHES = ("enable_thinking", "thinking")
_CALL_ID = "a1b2c3d4e"  # nine letters and digits, as required by Mistral's templates


class Capabilities(NamedTuple):
    """Features of a template."""

    system_role: bool
    typed_content: bool  # content must be a list of parts
    tools: bool
    tool_calls: bool
    text_arguments: bool  # a call's arguments may be given as JSON text
    tool_results: bool
    switches: tuple[str, ...] = ()
    """Names of boolean variables that enable reasoning."""
    efforts: tuple[str, ...] = ()
    """The values of `reasoning_effort` that make a difference, in the order of `EFFORTS`."""


def detect_capabilities(attempt: Callable[[dict[str, Any]], str]) -> Capabilities:
    """Render probes; `attempt` renders variables and returns an empty text if the template
    raises."""
    user: dict[str, Any] = {"role": "user", "content": "probeuser"}
    typed = "probeuser" not in _try(attempt, [user]) and "probeuser" in _try(
        attempt, [{"role": "user", "content": [{"type": "text", "text": "probeuser"}]}]
    )
    if typed:
        user = {"role": "user", "content": [{"type": "text", "text": "probeuser"}]}
    as_text = _try_call(attempt, user, '{"probearg": "probevalue"}')
    as_object = _try_call(attempt, user, {"probearg": "probevalue"})
    text_arguments = '"probearg": "probevalue"' in as_text
    return Capabilities(
        system_role="probesystem" in _try(attempt, [_system(typed), user]),
        typed_content=typed,
        tools="probetool" in _try(attempt, [user], [_TOOL]),
        tool_calls=text_arguments or _shows_object(as_object),
        text_arguments=text_arguments,
        tool_results="proberesult" in as_text or "proberesult" in as_object,
        switches=_find_switches(attempt, user),
        efforts=_find_efforts(attempt, user),
    )


def _find_switches(
    attempt: Callable[[dict[str, Any]], str], user: dict[str, Any]
) -> tuple[str, ...]:
    def text(name: str, value: bool) -> str:
        return _try(attempt, [user], more={name: value, "add_generation_prompt": True})

    return tuple(name for name in _SWITCHES if text(name, True) != text(name, False))


def _find_efforts(
    attempt: Callable[[dict[str, Any]], str], user: dict[str, Any]
) -> tuple[str, ...]:
    def text(effort: str) -> str:
        more = {"reasoning_effort": effort, "add_generation_prompt": True}
        return _try(attempt, [user], more=more)

    unknown = text("probeeffort")
    if "probeeffort" in unknown:
        return _FREE_EFFORTS
    return tuple(effort for effort in EFFORTS if text(effort) not in ("", unknown))


_TOOL = {
    "type": "function",
    "function": {
        "name": "probetool",
        "description": "probedescription",
        "parameters": {"type": "object", "properties": {"probearg": {"type": "string"}}},
    },
}


def _system(typed: bool) -> dict[str, Any]:
    text = "probesystem"
    return {"role": "system", "content": [{"type": "text", "text": text}] if typed else text}


def _try(
    attempt: Callable[[dict[str, Any]], str],
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    return attempt(
        {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": False,
            "bos_token": "",
            "eos_token": "",
            **more,
        }
    )


def _try_call(
    attempt: Callable[[dict[str, Any]], str], user: dict[str, Any], arguments: Any
) -> str:
    function = {"name": "probetool", "arguments": arguments}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    result = {
        "role": "tool",
        "tool_call_id": _CALL_ID,
        "name": "probetool",
        "content": "proberesult",
    }
    assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
    return _try(attempt, [user, assistant, result], [_TOOL]) or _try(
        attempt, [user, assistant], [_TOOL]
    )


def _shows_object(text: str) -> bool:
    """Whether the arguments are rendered, and not as the repr of a Python dict."""
    return "probevalue" in text and "{'probearg'" not in text
