"""Chat templates of models and their rendering; models without a template use ChatML with Hermes
tool calls.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from inference_svc.chat.control_tokens import ControlTexts, Placeholders, PromptSpan
from inference_svc.chat.conversation import (
    Conversation,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolSpec,
)
from inference_svc.chat.json_values import json_or_none, json_text, schema_for_model
from inference_svc.chat.parsers.formats import (
    NO_OVERRIDE,
    FormatOverride,
    ReasoningFormat,
    ToolCallFormat,
    TurnFormat,
    detect_format,
)
from inference_svc.chat.parsers.turn import Markers
from inference_svc.chat.prompt_places import PlaceMarks
from inference_svc.chat.reasoning_support import NO_THINKING, ThinkingMode, ThinkingSupport
from inference_svc.chat.template_capabilities import NO_CAPABILITIES, Capabilities
from inference_svc.sandbox_jobs import RENDER_TEMPLATE
from svc_kit.errors import DomainError, TemplateFailed, TooLong
from svc_kit.off_loop import off_loop
from svc_kit.sandbox.jobs import FailureKind, JobFailed, JobRunner

_DENSE = (",", ":")
"""The separators of `JSON.stringify`, with which clients send arguments. Models write spaces."""
FALLBACK_STOP_TEXTS = ("<|im_end|>",)
FALLBACK_FORMAT = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
FALLBACK_TEMPLATE = """\
{%- set ns = namespace(system='') %}
{%- if messages and messages[0].role == 'system' %}
{%- set ns.system = messages[0].content %}
{%- endif %}
{%- if tools %}
{%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + '# Tools\\n\\nYou can call these \
functions:\\n<tools>' %}
{%- for tool in tools %}{% set ns.system = ns.system + '\\n' + (tool | tojson) %}{% endfor %}
{%- set ns.system = ns.system + '\\n</tools>\\n\\nTo call a function, answer with:\\n<tool_call>\\n\
{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' %}
{%- endif %}
{%- if ns.system %}{{- '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else \
call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


MAX_TEMPLATE_CHARACTERS = 256 * 1024
MEDIA_TEXT = "<__media__>"
"""Stands for a picture or a sound in the text of a prompt."""


@dataclass(frozen=True, slots=True)
class ModelTemplate:
    """A chat template with the properties of its model.

    `origin` is "gguf", "file" or "fallback", as in `Model.chat_template_source`. `turn_format` is
    the operator's override of the model's output format, for any template.
    """

    source: str
    origin: str
    bos_text: str
    eos_text: str
    control_texts: ControlTexts
    turn_format: FormatOverride = NO_OVERRIDE

    @classmethod
    def for_model(
        cls,
        template: str | None,
        bos_text: str,
        eos_text: str,
        control_texts: Iterable[str],
        turn_format: FormatOverride = NO_OVERRIDE,
    ) -> "ModelTemplate":
        """Return the template of a model, or the fallback if `template` is None or empty."""
        return cls(
            source=template or FALLBACK_TEMPLATE,
            origin="gguf" if template else "fallback",
            bos_text=bos_text,
            eos_text=eos_text,
            control_texts=ControlTexts(control_texts),
            turn_format=turn_format,
        )


class Rendering(NamedTuple):
    """What a prompt was rendered from, and how its text is split."""

    payload: dict[str, Any]
    split: Callable[[str], tuple[PromptSpan, ...]]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt, and the format of the output. `opens_in_reasoning`: the prompt ends inside the
    reasoning. `stop_texts` end the turn in addition to the model's end tokens. `single_calls`: the
    template takes back only one call of a turn."""

    spans: tuple[PromptSpan, ...]
    opens_in_reasoning: bool
    turn_format: TurnFormat
    stop_texts: tuple[str, ...] = ()
    thinking: ThinkingSupport = NO_THINKING
    single_calls: bool = False
    rendering: Rendering | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


class ChatTemplates:
    """Renders conversations. `now` is the clock for templates that render the date."""

    def __init__(self, jobs: JobRunner, now: Callable[[], datetime] = datetime.now) -> None:
        self._jobs = jobs
        self._now = now

    async def render(self, template: ModelTemplate, conversation: Conversation) -> RenderedPrompt:
        """Render a conversation that has passed `Conversation.check`.

        Raises:
            TemplateFailed: The template is invalid, refused the messages, or exceeded a limit.
            TooLong: The template is too long.
            QueueFull: Too many renderings are queued.
        """
        source = conversation.options.template or template.source
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise TooLong(
                field="chat_template",
                length=len(source),
                limit=MAX_TEMPLATE_CHARACTERS,
                unit="characters",
            )
        num_media = len(conversation.media)
        media = Placeholders([MEDIA_TEXT] * num_media)

        def protect(each: Conversation) -> tuple[dict[str, Any], Placeholders]:
            written = map(media.write, range(num_media))
            return template.control_texts.protect(_request_variables(each, source, written))

        request, placeholders = await off_loop(len(conversation.messages), protect, conversation)
        # Marks the end of the last message, to cut off what the template appends to it.
        end_mark = ""
        thought = _continued_thought(request["messages"], conversation, template, source)
        if conversation.continues_final_message and not thought:
            end_mark = Placeholders([""]).write(0)
            request["messages"][-1]["content"] += end_mark
        variables = {
            **request,
            "add_generation_prompt": not end_mark,
            "bos_token": template.bos_text,
            "eos_token": template.eos_text,
        }
        effort = conversation.options.reasoning_effort
        payload = self._payload(source, variables, (conversation.thinks, effort))
        text, capabilities = await self._run(payload)
        text = _cut_at(text, end_mark) if end_mark else text
        turn_format = template.turn_format.apply(
            _detect_format(source, supports_tools=capabilities.tools)
        )
        if thought and turn_format.reasoning_markers:
            text = _reopened(text, turn_format.reasoning_markers, source) + thought

        def split(text: str) -> tuple[PromptSpan, ...]:
            return tuple(media.split_media(placeholders.split(text)))

        spans = split(text)
        _check_media(spans, num_media)
        return RenderedPrompt(
            spans=spans,
            rendering=Rendering(payload, split),
            opens_in_reasoning=bool(thought)
            or _opens_in_reasoning(text, turn_format, conversation),
            turn_format=turn_format,
            stop_texts=_stop_texts(source, turn_format, conversation),
            thinking=_thinking_support(source, turn_format, capabilities),
            single_calls=capabilities.single_calls,
        )

    async def find_field(
        self, prompt: RenderedPrompt, conversation: Conversation, offset: int
    ) -> str:
        """The field of the conversation at a character of its prompt, as "messages[3].content";
        empty if it is not known. Renders it once more. Raises like `render`."""
        if prompt.rendering is None:
            return ""
        payload, split = prompt.rendering
        marks = PlaceMarks()
        variables = marks.mark(payload["variables"], conversation)
        marked, _ = await self._run({**payload, "variables": variables})
        return marks.find("".join(span.text for span in split(marked)), prompt.text, offset)

    async def find_format(self, template: ModelTemplate) -> tuple[TurnFormat, ThinkingSupport]:
        """Detect the output format of a model, and how its reasoning is controlled, from its
        template and the operator's override. A template that cannot be rendered counts as one
        without support for tools and switches."""
        try:
            result = await self.probe(template)
        except DomainError:
            result = NO_CAPABILITIES
        turn_format = template.turn_format.apply(
            _detect_format(template.source, supports_tools=result.tools)
        )
        return turn_format, _thinking_support(template.source, turn_format, result)

    async def probe(self, template: ModelTemplate) -> Capabilities:
        """Detect what a template supports. Raises like `render`."""
        variables = {
            "messages": [{"role": "user", "content": "Hello"}],
            "tools": None,
            "add_generation_prompt": True,
            "bos_token": template.bos_text,
            "eos_token": template.eos_text,
        }
        return (await self._run(self._payload(template.source, variables)))[1]

    def _payload(
        self,
        source: str,
        variables: dict[str, Any],
        thinking: tuple[bool | None, str | None] = (None, None),
    ) -> dict[str, Any]:
        return {
            "template": source,
            "now": self._now().isoformat(),
            "variables": variables,
            "thinking": thinking,
        }

    async def _run(self, payload: dict[str, Any]) -> tuple[str, Capabilities]:
        key = sha256(payload["template"].encode()).hexdigest()
        try:
            result: dict[str, Any] = await self._jobs.run(RENDER_TEMPLATE, payload, key=key)
        except JobFailed as failed:
            prefix = "" if failed.kind is FailureKind.REFUSED else "rendering was stopped: "
            raise TemplateFailed(problem=prefix + failed.problem) from None
        text = result.pop("text")
        return text, Capabilities(**result)


def _request_variables(
    conversation: Conversation, source: str, media: Iterator[str]
) -> dict[str, Any]:
    """The template variables that come from the request. `media` stand for its pictures and
    sounds."""
    names = {call.id: call.name for message in conversation.messages for call in message.tool_calls}
    has_developer_role = "'developer'" in source or '"developer"' in source
    uses_thinking = "message.thinking" in source and "reasoning_content" not in source
    reasoning_key = "thinking" if uses_thinking else "reasoning_content"
    tools = [_tool_variable(tool) for _, tool in conversation.offered_tools]
    return {
        **conversation.template_variables(),
        "messages": [
            _message_variable(message, names, has_developer_role, reasoning_key, media)
            for message in conversation.messages
        ],
        "tools": tools or None,
    }


def _message_variable(
    message: Message,
    names: dict[str, str],
    has_developer_role: bool,
    reasoning_key: str,
    media: Iterator[str],
) -> dict[str, Any]:
    role = message.role
    if role is Role.DEVELOPER and not has_developer_role:
        role = Role.SYSTEM
    variable: dict[str, Any] = {"role": role.value, "content": message.content(media)}
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    if role is Role.USER and 1 < len(texts) == len(message.parts):
        variable["parts"] = texts
    # gpt-oss's template uses the key "thinking", and refuses it together with content and calls.
    is_refused = reasoning_key == "thinking" and message.tool_calls and message.text
    if message.reasoning and not is_refused:
        variable[reasoning_key] = message.reasoning
    if message.tool_calls:
        variable["tool_calls"] = [_call_variable(call) for call in message.tool_calls]
    if message.tool_call_id:
        variable["tool_call_id"] = message.tool_call_id
    if name := message.name or names.get(message.tool_call_id, ""):
        variable["name"] = name
    return variable


def _call_variable(call: ToolCall) -> dict[str, Any]:
    text = call.arguments_json or "{}"
    value = json_or_none(text)
    if isinstance(value, dict) and text == json.dumps(value, ensure_ascii=False, separators=_DENSE):
        text = json_text(value)
    return {
        "id": call.id,
        "type": "function",
        "function": {
            "name": call.name,
            "arguments": {"text": text, "value": value if isinstance(value, dict) else None},
        },
    }


def _tool_variable(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = (
        schema_for_model(tool.parameters_json, "tools")
        if tool.parameters_json
        else {"type": "object", "properties": {}}
    )
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _check_media(spans: Iterable[PromptSpan], count: int) -> None:
    if sorted(span.media for span in spans if span.media is not None) != list(range(count)):
        raise TemplateFailed(problem="it omits or repeats a picture or sound of the messages")


def _continued_thought(
    messages: list[dict[str, Any]],
    conversation: Conversation,
    template: ModelTemplate,
    source: str,
) -> str:
    """Remove and return the thought that the model continues: a last message without content."""
    last = conversation.messages[-1]
    turn_format = template.turn_format.apply(_detect_format(source, supports_tools=True))
    is_thought = conversation.continues_final_message and last.reasoning and not last.text
    if not is_thought or turn_format.reasoning_markers is None:
        return ""
    message = messages.pop()
    thought: str = message.get("reasoning_content") or message["thinking"]
    return thought


def _reopened(text: str, markers: Markers, source: str) -> str:
    """Open a thought at the end of a prompt, in the place of an empty one."""
    begin, end = markers
    stripped = text.rstrip()
    if stripped.endswith(begin):
        return text
    before, marker, inside = stripped.removesuffix(end).rpartition(begin)
    if stripped.endswith(end) and marker and not inside.strip():
        text = before
    has_line_break = f"{begin}\\n" in source or f"{begin}\n" in source
    return f"{text}{begin}\n" if has_line_break else text + begin


def _cut_at(text: str, mark: str) -> str:
    before, separator, _ = text.rpartition(mark)
    if not separator:
        raise TemplateFailed(problem="it omits the text of the last assistant message")
    return before


def _detect_format(source: str, *, supports_tools: bool) -> TurnFormat:
    if source == FALLBACK_TEMPLATE:
        return FALLBACK_FORMAT
    return detect_format(source, supports_tools=supports_tools)


def _thinking_support(
    source: str, turn_format: TurnFormat, capabilities: Capabilities
) -> ThinkingSupport:
    support = ThinkingSupport.detect(
        turn_format,
        can_switch=bool(capabilities.switches),
        efforts=tuple(capabilities.efforts),
    )
    # Without a template it is unknown whether the model reasons.
    return support._replace(mode=ThinkingMode.NONE) if source == FALLBACK_TEMPLATE else support


def _stop_texts(
    source: str, turn_format: TurnFormat, conversation: Conversation
) -> tuple[str, ...]:
    texts = FALLBACK_STOP_TEXTS if source == FALLBACK_TEMPLATE else ()
    return (*texts, *(turn_format.stop_texts if conversation.offers_tools else ()))


def _opens_in_reasoning(text: str, turn_format: TurnFormat, conversation: Conversation) -> bool:
    if turn_format.reasoning_markers is None:
        return False
    begin, end = turn_format.reasoning_markers
    if conversation.continues_final_message:
        last = conversation.messages[-1].text
        return last.rfind(begin) > last.rfind(end)
    return text.rstrip().endswith(begin)
