"""Templates of llama.cpp beside llama-server and transformers: each conversation as they render it.

What they render is recorded as digests (`record_renderings.py`). Requests go the way of
/v1/chat/completions, from JSON to the text of the prompt.
"""

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest

from dialects.openai.chat.chat_request import chat_request, parse_chat
from inference_svc.chat.control_tokens import ControlTexts
from inference_svc.chat.conversation import ConversationLimits
from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.rpc.prompts import to_conversation
from svc_kit.errors import TemplateFailed
from tests.outside.llama_cpp.conversations import CONVERSATIONS
from tests.outside.llama_cpp.differences import DIFFERENCES, cases_of
from tests.outside.llama_cpp.record_renderings import (
    BOS,
    EOS,
    REFERENCES,
    REFUSED,
    digest,
    templates,
)
from tests.outside.llama_cpp.results import check_results
from tests.outside.llama_cpp.source import llama_cpp_source
from tests.outside.llama_cpp.template_cases import read_template_cases
from tests.outside.vllm.vllm_tests import vllm_templates
from tests.support.sandbox_jobs import InlineJobs

pytestmark = pytest.mark.timeout(240)  # the first run downloads vLLM's package
Digests = dict[tuple[str, str], str]
TEXTS_OF_CASES = [
    "You are a helpful assistant",
    "Hello",
    "Hi there",
    "Who are you",
    "   I am an assistant   ",
    "Another question",
]
RECORDED: dict[str, Any] = json.loads(REFERENCES.read_text())


def recorded_at() -> datetime:
    """The day of the references, for templates that render the date."""
    return datetime.fromisoformat(RECORDED["date"])


TEMPLATES = ChatTemplates(InlineJobs(), now=recorded_at)


def model_template(source: str, bos: str, eos: str) -> ModelTemplate:
    return ModelTemplate(source, "file", bos, eos, ControlTexts([]))


async def render(template: ModelTemplate, body: dict[str, Any]) -> str:
    """The prompt of a request's body."""
    request = chat_request(parse_chat({"model": "m", **body}))
    conversation = to_conversation(request.conversation, allows_templates=False)
    conversation.check(ConversationLimits())
    return (await TEMPLATES.render(template, conversation)).text


async def digest_or_refusal(template: ModelTemplate, body: dict[str, Any]) -> str:
    try:
        return digest(await render(template, body))
    except TemplateFailed:
        return REFUSED


def recognised_by(source: str, calls: ToolCallFormat) -> str:
    """The texts in a template that tell the format of its model's calls."""
    found = (texts for texts in FAMILIES[calls].signatures if all(text in source for text in texts))
    return " and ".join(f"`{text}`" for text in next(found, ())).replace("|", "\\|")


@pytest.fixture(scope="module")
def rendered() -> Digests:
    """What Corral renders, by template and conversation."""

    async def render_all() -> Digests:
        return {
            (name, conversation): await digest_or_refusal(model_template(source, BOS, EOS), body)
            for name, source in templates().items()
            for conversation, body in CONVERSATIONS.items()
        }

    return asyncio.run(render_all())


@pytest.fixture(scope="module")
def references() -> dict[tuple[str, str], list[str]]:
    """The digests of llama-server and of transformers."""
    return {
        (name, conversation): pair.split()
        for name, pairs in RECORDED["templates"].items()
        for conversation, pair in zip(RECORDED["conversations"], pairs, strict=True)
    }


def test_prompts_are_those_of_llama_server(
    rendered: Digests, references: dict[tuple[str, str], list[str]]
) -> None:
    """Of all templates and conversations but those of `DIFFERENCES`, which all differ."""
    differing = {case for case, text in rendered.items() if text != references[case][0]}
    documented = [
        case for each in DIFFERENCES for case in cases_of(each, list(RECORDED["templates"]))
    ]

    assert rendered.keys() == references.keys()
    assert sorted(differing) == sorted(documented)


def test_documented_differences_are_those_of_transformers(
    rendered: Digests, references: dict[tuple[str, str], list[str]]
) -> None:
    """Where the table says so, and nowhere else."""
    for difference in DIFFERENCES:
        for case in cases_of(difference, list(RECORDED["templates"])):
            is_same = rendered[case] == references[case][1]
            assert is_same is difference.as_transformers, (case, difference.reason)


def test_no_template_refuses_a_conversation(rendered: Digests) -> None:
    """Llama 3.1's template calls `raise_exception` for parallel calls, which it is given one by
    one."""
    assert [case for case, text in rendered.items() if text == REFUSED] == []


async def test_prompts_are_those_of_test_chat_template() -> None:
    """All of its cases for Jinja whose roles OpenAI's API has; an empty line, as in Gemma 3 and
    Mistral, ends a system message that is merged into the user's."""
    source = (llama_cpp_source() / "tests" / "test-chat-template.cpp").read_text()
    cases = [each for each in read_template_cases(source) if each.is_supported and not each.extra]
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, TEXTS_OF_CASES, strict=True)
    ]
    merged = 0
    for case in cases:
        prompt = await render(
            model_template(case.template, case.bos, case.eos), {"messages": messages}
        )
        if prompt != case.prompt:
            merged += 1
            assert prompt == case.prompt.replace("assistant\nHello", "assistant\n\nHello"), (
                case.name
            )

    assert (len(cases), merged) == (32, 6)


async def test_results_are_published(
    rendered: Digests, references: dict[tuple[str, str], list[str]]
) -> None:
    """The numbers of docs/reference/models.md, and the detected formats."""
    rows = {}
    for name, source in templates().items():
        turn_format, _ = await TEMPLATES.find_format(model_template(source, BOS, EOS))
        cases = [case for case in rendered if case[0] == name]
        equal = sum(rendered[case] == references[case][0] for case in cases)
        numbers = f"{equal} + {len(cases) - equal}"
        rows[name] = [
            turn_format.tool_calls.value,
            turn_format.reasoning.value,
            recognised_by(source, turn_format.tool_calls),
            numbers,
        ]
    for name, source in vllm_templates().items():
        turn_format, _ = await TEMPLATES.find_format(model_template(source, BOS, EOS))
        calls = turn_format.tool_calls
        rows[name] = [calls.value, turn_format.reasoning.value, recognised_by(source, calls), ""]
    equal = sum(text == references[case][0] for case, text in rendered.items())
    as_transformers = sum(
        text in references[case][1:] and text != references[case][0]
        for case, text in rendered.items()
    )
    check_results(
        "renderings",
        {
            "summary": f"renderings: {equal:,} of {len(rendered):,} as llama-server, "
            f"{len(rendered) - equal:,} otherwise for {len(DIFFERENCES)} documented reasons, "
            f"{as_transformers} of them as transformers",
            "columns": ["Tool calls", "Reasoning", "Recognised by", "Renderings"],
            "rows": rows,
        },
    )
