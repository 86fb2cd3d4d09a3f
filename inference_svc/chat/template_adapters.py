"""Adapts messages to what a template supports.

System messages, tools, calls and results that a template would silently drop are added as text to
messages that it renders.
"""

import json
import re
from base64 import b32encode
from hashlib import sha256
from itertools import chain, groupby
from typing import Any

from inference_svc.chat.json_values import json_or_none
from inference_svc.chat.template_capabilities import EFFORTS, TOOL_VARIABLES, Capabilities

_TOOLS_HEAD = "# Tools\n\nYou can call these functions:\n<tools>\n"
_TOOLS_TAIL = (
    "\n</tools>\n\nTo call a function, answer with:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)

_SYSTEM_TEXT = "You are a model that can do function calling with the following functions"
"""With which FunctionGemma was trained, whose template shows tools only after a system message."""


def adapt(variables: dict[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    """Return the variables for the template. The "arguments" of a call, {"text": …, "value": …},
    are replaced by the one that the template supports."""
    messages = [_with_role(message, capabilities) for message in variables["messages"]]
    tools = variables["tools"]
    if not capabilities.tool_calls:
        messages = [_calls_as_text(message) for message in messages]
    elif capabilities.single_calls:
        messages = _with_single_calls(messages)
    if not capabilities.tool_results:
        messages = _results_as_user_turns(messages)
    elif capabilities.tool_responses:
        messages = _results_in_turns_of_calls(messages)
    messages = _with_single_answers(messages) if capabilities.single_answers else messages
    for message in messages:
        _adapt_calls(message, capabilities)
    if tools:
        messages = _with_tools(messages, tools, capabilities)
        tools = tools if capabilities.tools else None
    if not capabilities.system_role:
        messages = _without_system_role(messages)
    for message in messages:
        message["content"] = _content(message, capabilities)
    named = TOOL_VARIABLES[capabilities.tool_variables](tools)
    return {**variables, "messages": messages, **named}


def thinking_variables(
    enabled: bool | None, effort: str | None, capabilities: Capabilities
) -> dict[str, Any]:
    """The variables that enable or disable reasoning, with the nearest effort that the template
    knows. None means that the template decides."""
    if enabled is None:
        return {}
    values: dict[str, Any] = dict.fromkeys(("enable_thinking", *capabilities.switches), enabled)
    known = [name for name in capabilities.efforts if (name != "none") is enabled]
    wanted = EFFORTS.index(effort if effort not in (None, "none") else "medium")
    if known and (effort is not None or "none" in capabilities.efforts):
        values["reasoning_effort"] = min(known, key=lambda name: abs(EFFORTS.index(name) - wanted))
    return values


def _with_role(message: dict[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    is_unknown = message["role"] == "developer" and not capabilities.developer_role
    return {**message, "role": "system"} if is_unknown else {**message}


def _content(message: dict[str, Any], capabilities: Capabilities) -> Any:
    """The text or the parts of a message, as the template expects them."""
    text, parts = message["content"], message.pop("parts", ())
    texts = parts if capabilities.parts and parts and "\n".join(parts) == text else [text]
    thoughts = []
    if capabilities.thinking_parts and (thought := message.pop("reasoning_content", "")):
        thoughts.append({"type": "thinking", "thinking": thought})
    if not thoughts and not capabilities.typed_content and len(texts) == 1:
        return text
    return [*thoughts, *({"type": "text", "text": each} for each in texts)]


def _adapt_calls(message: dict[str, Any], capabilities: Capabilities) -> None:
    """Write ids and arguments as the template takes them."""
    write_id = _short_id if capabilities.short_ids else str
    if "tool_call_id" in message:
        message["tool_call_id"] = write_id(message["tool_call_id"])
    for call in message.get("tool_calls", ()):
        call["id"] = write_id(call["id"])
        text, value = call["function"]["arguments"].values()
        is_text = capabilities.text_arguments or value is None
        call["function"]["arguments"] = text if is_text else value


def _short_id(call_id: str) -> str:
    """An id with nine letters and digits, always the same one for an id."""
    if re.fullmatch("[A-Za-z0-9]{9}", call_id):
        return call_id
    return b32encode(sha256(call_id.encode()).digest()).decode()[:9]


def _calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.pop("tool_calls", ())
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        name = json.dumps(call["function"]["name"], ensure_ascii=False)
        arguments = call["function"]["arguments"]["text"]
        texts.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
    return {**message, "content": "\n".join(texts)}


def _with_single_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each call a message of its own, with its results behind it. Text and reasoning belong to
    the first one."""
    turns: list[list[dict[str, Any]]] = []
    open_turns: dict[str, list[dict[str, Any]]] = {}  # of the last calls, by their ids
    for message in messages:
        calls = message.get("tool_calls", ())
        if message["role"] == "tool" and message.get("tool_call_id") in open_turns:
            open_turns[message["tool_call_id"]].append(message)
            continue
        open_turns = {}
        if len(calls) < 2:
            turns.append([message])
            continue
        for i, call in enumerate(calls):
            own = message if i == 0 else {"role": message["role"], "content": ""}
            turns.append([{**own, "tool_calls": [call]}])
            open_turns[call["id"]] = turns[-1]
    return list(chain.from_iterable(turns))


def _results_as_user_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
        if is_result:
            texts = (f"<tool_response>\n{each['content']}\n</tool_response>" for each in group)
            turns.append({"role": "user", "content": "\n".join(texts)})
        else:
            turns += group
    return turns


def _results_in_turns_of_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move results, and an answer after them, into the turn with the calls, as in Gemma 4."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        last = turns[-1] if turns else {}
        if message["role"] == "tool" and "tool_calls" in last:
            value = json_or_none(message["content"])
            response = value if isinstance(value, dict) else message["content"]
            responses = last.setdefault("tool_responses", [])
            responses.append({"name": message.get("name", ""), "response": response})
        elif (
            message["role"] == "assistant"
            and "tool_responses" in last
            and "tool_calls" not in message
        ):
            last["content"] = _joined(last, message)
        else:
            turns.append(message)
    return turns


def _with_single_answers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join assistant messages in a row, up to one with calls."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        last = turns[-1] if turns else message
        roles = {last["role"], message["role"]}
        if last is message or roles != {"assistant"} or "tool_calls" in last:
            turns.append(message)
            continue
        for key in last.keys() & {"reasoning_content", "thinking"}:
            message[key] = last[key] + message.get(key, "")
        turns[-1] = {**message, "content": _joined(last, message)}
    return turns


def _joined(*messages: dict[str, Any]) -> str:
    return "\n".join(message["content"] for message in messages if message["content"])


def _with_tools(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], capabilities: Capabilities
) -> list[dict[str, Any]]:
    """Add what the template needs to show tools: their text, or a system message."""
    if not capabilities.tools:
        return _with_system_text(messages, _tools_text(tools))
    if capabilities.tools_need_system and messages[0]["role"] not in ("system", "developer"):
        return _with_system_text(messages, _SYSTEM_TEXT)
    return messages


def _tools_text(tools: list[dict[str, Any]]) -> str:
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _TOOLS_HEAD + "\n".join(lines) + _TOOLS_TAIL


def _with_system_text(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    joined = f"{messages[0]['content']}\n\n{text}" if messages[0]["content"] else text
    return [{**messages[0], "content": joined}, *messages[1:]]


def _without_system_role(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prepend each system text to the next user turn."""
    turns: list[dict[str, Any]] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system":
            pending.append(message["content"])
            continue
        if pending and message["role"] == "user":
            message = {**message, "content": "\n\n".join((*pending, message["content"]))}
            pending.clear()
        turns.append(message)
    if pending:
        turns.append({"role": "user", "content": "\n\n".join(pending)})
    return turns
