"""llama.cpp's own cases of parsing, through Corral's parser: whole and split at every place.

The format is detected from the template of the case, and the prompt rendered, as in production.
"""

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace
from datetime import datetime
from functools import cache
from itertools import takewhile
from typing import Final, NamedTuple

from corral.inference.v1 import generation_pb2 as pb

from inference_svc.chat.conversation import (
    Conversation,
    Message,
    Role,
    TemplateOptions,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from inference_svc.chat.json_values import json_or_none
from inference_svc.chat.parsers.formats import ReasoningFormat
from inference_svc.chat.templates import ChatTemplates, ModelTemplate, RenderedPrompt
from inference_svc.rpc.chat_turn import make_parser
from inference_svc.rpc.output_constraints import chat_output_spec
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import whole_grammar
from inference_svc.structured_output.matcher import build_matcher
from inference_svc.structured_output.spec import ID, NUMBER, SPACE
from tests.outside.llama_cpp.chat_cases import ReadCase, ReadMessage, read_cases
from tests.outside.llama_cpp.record_renderings import templates
from tests.outside.llama_cpp.results import check_results
from tests.outside.llama_cpp.source import llama_cpp_source
from tests.support.sandbox_jobs import InlineJobs
from tests.support.turns import Parsed, feed, finish, merge_deltas

DIFFERENCES: Final = {
    "The part of a thought or its marker that the prompt wrote is not repeated in the answer.": """
        Apriel-1.6-15b-Thinker-fixed:6211 Apriel-1.6-15b-Thinker-fixed:6219 Cohere2MoE:2883
        NVIDIA-Nemotron-3-Nano-30B-A3B-BF16:2704 Qwen3.5-4B:2156""",
    "A marker that opens the open thought again is not part of it.": "Qwen3.5-4B:2377",
    "A final message without content is a thought to be continued, as llama-server's `auto`.": """
        inclusionai-ling-3.0-flash:4841""",
    "The grammar of an output format admits no code fence around it.": """
        mistralai-Ministral-3-14B-Reasoning-2512:2648 meta-llama-Llama-3.1-8B-Instruct:6302""",
    "A call begins with its arguments, which are as written.": """
        CohereForAI-c4ai-command-r7b-12-2024-tool_use:2847 Cohere2MoE:2962 Reka-Edge:5363""",
    "Tags inside a value are an object where the schema allows one beside a string.": """
        MiniMax-M3:5793""",
    "The text of a message to a tool that nobody offered is content, so that none is lost.": """
        openai-gpt-oss-120b:6547 openai-gpt-oss-120b:6556""",
    "Tools that a template cannot show are described, and called, in Hermes' format.": """
        CohereForAI-c4ai-command-r-plus-tool_use:5895""",
}
"""Where Corral's message is another one on purpose: why, and which cases, by template and line."""
CONTROL_TOKENS: Final = ("<|role_end|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
"""What the service does not write as text, unless the parser needs it."""
MODES: Final = {"COMMON_CHAT_TOOL_CHOICE_REQUIRED": ToolMode.REQUIRED}
WEATHER: Final = ToolSpec(
    "get_weather",
    "Weather of a city",
    '{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}',
)
NOW: Final = ToolSpec("now", "The time")
Calls = tuple[tuple[str, str], ...]
SHOWN: Final[Calls] = (("get_weather", '{"city": "a <b> & c", "days": 2}'), ("now", "{}"))
ONE_CALL: Final = ("meta-llama", "GigaChat3", "openai-gpt-oss")
"""Templates that show only one call of a message."""
CHOICES: Final = ("auto", "required")
NO_REASONING: Final = ReasoningFormat.OFF
GREETING: Final = ReadMessage("user", "Hey there!")


@cache
def _cases() -> list[ReadCase]:
    source = llama_cpp_source() / "tests" / "test-chat.cpp"
    cases, problems = read_cases(source.read_text(encoding="utf-8"))
    assert problems == []
    return cases


def _name(case: ReadCase) -> str:
    return f"{case.template.removesuffix('.jinja')}:{case.line}"


def _message(message: ReadMessage) -> Message:
    calls = tuple(ToolCall(call[2], *call[:2]) for call in message.calls)
    has_text = message.content or not (calls or message.reasoning)
    return Message(
        Role(message.role),
        (TextPart(message.content),) if has_text else (),
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _conversation(case: ReadCase) -> Conversation:
    options = case.options
    return Conversation(
        tuple(map(_message, case.messages or [GREETING])),
        tuple(ToolSpec(name, about, schema) for name, about, schema in case.tools),
        ToolChoice(MODES.get(options.get("tool_choice", ""), ToolMode.AUTO)),
        TemplateOptions(
            enable_thinking=options.get("enable_thinking", True),
            continue_final_message="continue_final_message" in options,
        ),
    )


def _prompt(name: str, conversation: Conversation) -> RenderedPrompt:
    source = llama_cpp_source() / "models" / "templates" / name
    template = ModelTemplate.for_model(source.read_text(encoding="utf-8"), "<s>", "</s>", ())
    rendering = ChatTemplates(InlineJobs(), now=lambda: datetime(2026, 1, 1))  # noqa: DTZ001 (local)
    return asyncio.run(rendering.render(template, conversation))


def _is_inline(case: ReadCase) -> bool:
    none = "COMMON_REASONING_FORMAT_NONE"
    return bool(case.options.get("reasoning_format", none) == none)


def _expected(case: ReadCase) -> Parsed:
    """The expected message without what the request began, which is not repeated in an answer."""
    expected = case.expected
    begun = case.messages[-1] if "continue_final_message" in case.options else ReadMessage()
    return Parsed(
        expected.content.removeprefix(begun.content).strip(),
        expected.reasoning.removeprefix(begun.reasoning).strip(),
        tuple((call[0], _normal(call[1])) for call in expected.calls),
    )


def _normal(arguments: str) -> str:
    value = json_or_none(arguments)
    return json.dumps(value) if value is not None else arguments


def _trimmed(parsed: Parsed) -> Parsed:
    calls = tuple((name, _normal(arguments)) for name, arguments in parsed.calls)
    return Parsed(parsed.content.strip(), parsed.reasoning.strip(), calls)


class _Shown(NamedTuple):
    """Earlier calls as a template shows them; they are what a model writes."""

    conversation: Conversation
    prompt: RenderedPrompt
    text: str

    @classmethod
    def render(cls, name: str, calls: Calls) -> "_Shown":
        ids = [f"abcdef12{number}" for number in range(len(calls))]
        made = tuple(ToolCall(id_, *call) for id_, call in zip(ids, calls, strict=True))
        results = (Message(Role.TOOL, (TextPart("probe"),), tool_call_id=id_) for id_ in ids)
        asked = Conversation((_message(GREETING),), (WEATHER, NOW))
        answered = (*asked.messages, Message(Role.ASSISTANT, tool_calls=made), *results)
        opening = _prompt(name, asked)
        text = _prompt(name, replace(asked, messages=answered)).text.partition("probe")[0]
        pairs = zip(opening.text, text, strict=False)
        begin = sum(takewhile(bool, (one == other for one, other in pairs)))
        if begin < len(opening.text):  # an open thought, which may begin as a call does
            begin = max(text.rfind(end, 0, begin) for end in ">]\n") + 1
        return cls(asked, replace(opening, opens_in_reasoning=False), text[begin:])

    def parse(self, text: str) -> Calls:
        parser = make_parser(self.prompt, self.conversation, inline=False)
        return _trimmed(merge_deltas([feed(parser, text), finish(parser)])).calls

    def accepted(self, mode: ToolMode) -> str:
        """The longest text that the grammar of the next turn accepts as a whole."""
        conversation = replace(self.conversation, tool_choice=ToolChoice(mode))
        prompt = self.prompt
        prompt = replace(prompt, turn_format=prompt.turn_format._replace(reasoning=NO_REASONING))
        spec = chat_output_spec(pb.Constraint(), conversation, prompt)
        assert spec is not None
        family = prompt.turn_format.family
        markers = family.markers if family.headers else ()
        control = {marker: number for number, marker in enumerate(markers, 300)}
        matcher = build_matcher(byte_tokenizer(400, control, [299]), whole_grammar(spec, control))
        text = self.text
        if mode is ToolMode.REQUIRED:
            begins = {re.split(f"[{NUMBER}{SPACE}{ID}]", way.begin)[0] for way in family.syntaxes}
            text = text[min(text.find(begin) for begin in begins if begin in text) :].lstrip("\n")
        accepted = number = 0
        for piece in re.split(f"({'|'.join(map(re.escape, markers))})", text) if markers else text:
            tokens = [control[piece]] if piece in control else list(piece.encode())
            if matcher.try_consume_tokens(tokens) < len(tokens):
                break
            number += len(piece)
            accepted = number if matcher.is_accepting() else accepted
        return text[:accepted]


def _enforced(name: str, calls: Calls) -> str:
    """When calls are constrained in the syntax that a template shows; empty: never."""
    shown = _Shown.render(name, calls)
    family = shown.prompt.turn_format.family
    modes = {
        ToolMode.AUTO: bool(family.triggers or family.begin),
        ToolMode.REQUIRED: bool(family.syntaxes),
    }
    for mode, is_enforced in modes.items():
        if is_enforced:
            assert shown.parse(shown.accepted(mode)) == calls, (name, mode)
    return ", ".join(mode.name.lower() for mode, is_enforced in modes.items() if is_enforced)


class _Run:
    def __init__(self, case: ReadCase) -> None:
        self.name = _name(case)
        self._case = case
        self._conversation = _conversation(case)
        self._prompt = _prompt(case.template, self._conversation)
        hidden = {*CONTROL_TOKENS} - {*self._prompt.turn_format.marker_texts}
        self._text = re.sub("|".join(map(re.escape, hidden)) or "$", "", case.text)

    def parse(self, *pieces: str) -> Parsed:
        parser = make_parser(self._prompt, self._conversation, inline=_is_inline(self._case))
        deltas = [feed(parser, piece) for piece in pieces]
        if not self._case.options.get("is_partial"):
            deltas.append(finish(parser))
        return merge_deltas(deltas)

    def is_equal(self) -> bool:
        return _trimmed(self.parse(self._text)) == _expected(self._case)

    def splits(self) -> list[tuple[str, ...]]:
        """In two pieces at every place, and character by character."""
        text = self._text
        return [*((text[:cut], text[cut:]) for cut in range(1, len(text))), tuple(text)]

    def bad_splits(self) -> list[tuple[str, ...]]:
        whole = self.parse(self._text)
        return [split for split in self.splits() if self.parse(*split) != whole]


def test_messages_are_those_of_llama_cpp() -> None:
    """Except where the table says why not."""
    equal = [run.name for run in map(_Run, _cases()) if run.is_equal()]
    documented = " ".join(DIFFERENCES.values()).split()

    assert sorted([*equal, *documented]) == sorted(map(_name, _cases()))


def test_streams_add_up_at_every_split() -> None:
    """To the whole message; since deltas only add, nothing else was in content before."""
    assert {run.name: bad for run in map(_Run, _cases()) if (bad := run.bad_splits())} == {}


def test_the_calls_that_a_template_shows_are_parsed() -> None:
    """The texts of earlier calls in a prompt are what a model writes: each is the same call."""
    shown = {name: _Shown.render(f"{name}.jinja", SHOWN[:1]) for name in templates()}
    parsed = {name: each.parse(each.text) for name, each in shown.items()}

    assert {name: calls for name, calls in parsed.items() if calls != SHOWN[:1]} == {}


def test_the_calls_that_a_template_shows_are_accepted_by_grammars() -> None:
    """Of the family, when calls are required and, if they begin with a marker, in free text."""
    rows = {
        name: [_enforced(f"{name}.jinja", SHOWN[: 1 if name.startswith(ONE_CALL) else 2])]
        for name in templates()
    }
    num_rows = {choice: sum(choice in row[0] for row in rows.values()) for choice in CHOICES}
    summary = ", ".join(f"{num_rows[choice]} with tool choice `{choice}`" for choice in CHOICES)
    check_results(
        "call_grammars",
        {
            "summary": f"grammars of the calls that templates show: {summary}, of {len(rows)}",
            "columns": ["Constrained calls"],
            "rows": rows,
        },
    )


def test_results_are_published() -> None:
    """The numbers of docs/reference/models.md."""
    total = Counter(case.template.removesuffix(".jinja") for case in _cases())
    documented = Counter(
        name.partition(":")[0] for names in DIFFERENCES.values() for name in names.split()
    )
    num_documented = documented.total()
    num_splits = sum(len(case.text) for case in _cases())
    summary = (
        f"parser cases: {total.total() - num_documented} of {total.total()} as llama.cpp, "
        f"{num_documented} otherwise for {len(DIFFERENCES)} documented reasons; "
        f"the same at {num_splits:,} splits"
    )
    rows = {
        name: [f"{count - documented[name]} + {documented[name]}"] for name, count in total.items()
    }
    check_results("parser_cases", {"summary": summary, "columns": ["Parser cases"], "rows": rows})
