"""Detects what a chat template supports by rendering probes.

Templates fail silently: some drop system messages or tools, some expect the arguments of a call as
an object, others as text.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_FREE_EFFORTS = ("low", "medium", "high")  # what models are trained with that read any text
_SWITCHES = ("enable_thinking", "thinking")
_CALL_IDS = ("a1b2c3d4e", "e4d3c2b1a")  # nine letters and digits, as Mistral's templates require
_CALL_ID = _CALL_IDS[0]
_ARGUMENTS = {"probearg": "probevalué"}
_ARGUMENTS_TEXT = json.dumps(_ARGUMENTS, ensure_ascii=False)
TOOL_VARIABLES: dict[str, Callable[[list[dict[str, Any]] | None], dict[str, Any]]] = {
    "tools": lambda tools: {"tools": tools},
    "list": lambda tools: {"tools": tools or []},
    "functions": lambda tools: {
        "tools": tools,
        "functions": json.dumps([tool["function"] for tool in tools], ensure_ascii=False, indent=4)
        if tools
        else "",
    },
}
"""The variables with the tools, if there are any, in the order in which they are tried: the usual
one; a list even without tools (Hermes, Command R+); a JSON text (FireFunction)."""


class Capabilities(NamedTuple):
    system_role: bool = False
    typed_content: bool = False  # content must be a list of parts
    tools: bool = False
    tool_calls: bool = False
    text_arguments: bool = False  # a call's arguments may be given as JSON text
    tool_results: bool = False
    tool_responses: bool = False  # results belong to the turn with the calls
    single_calls: bool = False  # a message may have only one call, or only one of them is rendered
    short_ids: bool = False  # ids of calls have nine letters and digits
    single_answers: bool = False  # an assistant message may not follow another one
    tools_need_system: bool = False  # tools are rendered only beside a system message
    parts: bool = False  # the content of a user may be a list of several parts
    developer_role: bool = False
    thinking_parts: bool = False  # reasoning is a part of the content
    tool_variables: str = "tools"
    """How tools are given: one of `TOOL_VARIABLES`."""
    switches: tuple[str, ...] = ()
    """Names of boolean variables that enable reasoning."""
    efforts: tuple[str, ...] = ()
    """The values of `reasoning_effort` that make a difference, in the order of `EFFORTS`, and the
    usual ones if the template has a default for others."""


NO_CAPABILITIES = Capabilities()


def detect_capabilities(attempt: Callable[[dict[str, Any]], str]) -> Capabilities:
    """Render probes; `attempt` renders variables and returns an empty text if the template
    raises."""
    probes = _find_content(attempt)
    user = probes.user
    as_text = probes.render_call(_ARGUMENTS_TEXT)
    as_object = probes.render_call(_ARGUMENTS)
    shows_object = "probevalu" in as_object and str(_ARGUMENTS) not in as_object
    # A text is what the model wrote, unless the template writes objects in a syntax of its own.
    text_arguments = _ARGUMENTS_TEXT in as_text and (as_text == as_object or not shows_object)
    switches = probes.find_switches()
    system = probes.turn("system", "probesystem")
    shows_tools = "probetool" in probes.render([user], [_TOOL])
    needs_system = not shows_tools and "probetool" in probes.render([system, user], [_TOOL])
    tool_calls = text_arguments or shows_object
    return Capabilities(
        system_role="probesystem" in probes.render([system, user]),
        typed_content=probes.typed,
        tools=shows_tools or needs_system,
        tools_need_system=needs_system,
        tool_calls=tool_calls,
        single_calls=tool_calls and not probes.renders_two_calls(text_arguments),
        short_ids=tool_calls and not probes.renders_long_id(text_arguments),
        single_answers=not probes.renders_two_answers(),
        text_arguments=text_arguments,
        tool_results="proberesult" in as_text or "proberesult" in as_object,
        tool_responses=probes.renders_tool_responses(),
        parts=probes.renders_parts(),
        developer_role="probedeveloper"
        in probes.render([probes.turn("developer", "probedeveloper"), user]),
        thinking_parts=probes.renders_thinking_parts(),
        tool_variables=probes.tool_variables,
        switches=switches,
        efforts=probes.find_efforts(dict.fromkeys(switches, True)),
    )


_TOOL = {
    "type": "function",
    "function": {
        "name": "probetool",
        "description": "probedescription",
        "parameters": {"type": "object", "properties": {"probearg": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class _Probes:
    """Renders probes with the kind of content and tools that a template expects."""

    attempt: Callable[[dict[str, Any]], str]
    typed: bool
    tool_variables: str

    @property
    def user(self) -> dict[str, Any]:
        return self.turn("user", "probeuser")

    def turn(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [_text_part(text)] if self.typed else text}

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        return self.attempt(
            {
                "messages": messages,
                **TOOL_VARIABLES[self.tool_variables](tools),
                "add_generation_prompt": False,
                "bos_token": "",
                "eos_token": "",
                **more,
            }
        )

    def render_call(self, arguments: Any, call_id: str = _CALL_ID, name: str = "probetool") -> str:
        """`call_id` and `name` are those of the result."""
        assistant = self._call(arguments)
        more = {"tool_call_id": call_id, "name": name}
        result = {"role": "tool", "content": "proberesult", **more}
        return self.render([self.user, assistant, result], [_TOOL]) or self.render(
            [self.user, assistant], [_TOOL]
        )

    def _call(self, *arguments: Any) -> dict[str, Any]:
        calls = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": "probetool", "arguments": each},
            }
            for call_id, each in zip(_CALL_IDS, arguments, strict=False)
        ]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def renders_two_calls(self, as_text: bool) -> bool:
        """Whether a message with two calls is rendered with both, and both results after it."""
        values = ("probefirst", "probesecond")
        arguments = [{"probearg": value} for value in values]
        turn = self._call(*(map(json.dumps, arguments) if as_text else arguments))
        results = [
            {"role": "tool", "content": "proberesult", "tool_call_id": call_id, "name": "probetool"}
            for call_id in _CALL_IDS
        ]
        text = self.render([self.user, turn, *results], [_TOOL])
        return all(value in text for value in values)

    def renders_long_id(self, as_text: bool) -> bool:
        """Whether a call with an id in OpenAI's form is rendered."""
        turn = self._call(_ARGUMENTS_TEXT if as_text else _ARGUMENTS)
        turn["tool_calls"][0]["id"] = "call_a1b2c3d4e5f6"
        return "probetool" in self.render([self.user, turn], [_TOOL])

    def renders_two_answers(self) -> bool:
        """Whether two assistant messages in a row are rendered."""
        answers = [self.turn("assistant", text) for text in ("probefirst", "probesecond")]
        text = self.render([self.user, *answers, self.user])
        return "probefirst" in text and "probesecond" in text

    def renders_tool_responses(self) -> bool:
        """Whether they are rendered, while turns with results do not say whose they are."""
        responses = [{"name": "probetool", "response": "proberesponse"}]
        turn = {**self._call(_ARGUMENTS), "tool_responses": responses}
        others = self.render_call(_ARGUMENTS, _CALL_ID[::-1], "othertool")
        return "proberesponse" in self.render(
            [self.user, turn], [_TOOL]
        ) and others == self.render_call(_ARGUMENTS)

    def renders_parts(self) -> bool:
        parts = [_text_part("probeone"), _text_part("probetwo")]
        text = self.render([{"role": "user", "content": parts}])
        return _shows(text, "text", "probeone") and "probetwo" in text

    def renders_thinking_parts(self) -> bool:
        turn = self.turn("assistant", "probeanswer")
        thinking = {"type": "thinking", "thinking": "probethought"}
        parts = {"role": "assistant", "content": [thinking, _text_part("probeanswer")]}
        text = self.render([self.user, parts])
        as_key = self.render([self.user, {**turn, "reasoning_content": "probethought"}])
        return _shows(text, "thinking", "probethought") and "probethought" not in as_key

    def find_switches(self) -> tuple[str, ...]:
        def text(name: str, value: bool) -> str:
            return self.render([self.user], more={name: value, "add_generation_prompt": True})

        return tuple(name for name in _SWITCHES if text(name, True) != text(name, False))

    def find_efforts(self, switches: dict[str, bool]) -> tuple[str, ...]:
        def text(effort: str) -> str:
            more = {**switches, "reasoning_effort": effort, "add_generation_prompt": True}
            return self.render([self.user], more=more)

        unknown = text("probeeffort")
        if "probeeffort" in unknown:
            return _FREE_EFFORTS
        known = {effort for effort in EFFORTS if text(effort) not in ("", unknown)}
        if unknown and known - {"none"}:
            known |= {*_FREE_EFFORTS}  # those without an effect mean the default
        return tuple(effort for effort in EFFORTS if effort in known)


def _find_content(attempt: Callable[[dict[str, Any]], str]) -> _Probes:
    """Find the first kind of content and of tools with which a user's text is rendered."""
    usual = _Probes(attempt, typed=False, tool_variables="tools")
    kinds = (
        replace(usual, typed=typed, tool_variables=name)
        for name in TOOL_VARIABLES
        for typed in (False, True)
    )
    return next((kind for kind in kinds if "probeuser" in kind.render([kind.user])), usual)


def _shows(text: str, key: str, value: str) -> bool:
    """Whether a value is rendered, and not as the repr of the Python dict, or the JSON, that has it
    under a key."""
    return value in text and not any(
        f"{quote}{key}{quote}: {quote}{value}" in text for quote in "'\""
    )


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
