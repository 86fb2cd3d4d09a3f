"""What templates can do about reasoning, and what the options of a request become."""

import pytest

from inference_svc.chat.control_tokens import ControlTexts
from inference_svc.chat.conversation import Conversation, ReasoningEffort
from inference_svc.chat.parsers.formats import FormatOverride, ReasoningFormat
from inference_svc.chat.reasoning_support import (
    ThinkingMode,
    ThinkingSupport,
    check_thinking,
    ignored_options,
    token_budget,
)
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from svc_kit.errors import InvalidField
from tests.support.conversations import conversation, user
from tests.support.sandbox_jobs import InlineJobs

QWEN = "{% if enable_thinking is false %}<think></think>{% endif %}"
DEEPSEEK = "{% if thinking %}<think>{% else %}</think>{% endif %}"
R1 = "{% if add_generation_prompt %}<think>{% endif %}{# </think> #}"
GPT_OSS = "<|channel|><|message|>Reasoning: {{ reasoning_effort or 'medium' }}"
MAGISTRAL = (
    "{% set effort = reasoning_effort or 'none' %}{% if effort not in ['none', 'high'] %}"
    "{{ raise_exception('unknown effort') }}{% endif %}{{ effort }}{# [/THINK] #}"
)
SOLAR = "{{ 'q' if reasoning_effort != 'low' else '</think>' }}"  # others mean the default
PLAIN = "{{ messages[0].content }}"
Effort, Mode = ReasoningEffort, ThinkingMode
FREE = (Effort.LOW, Effort.MEDIUM, Effort.HIGH)


def make_template(source: str) -> ModelTemplate:
    return ModelTemplate(source, "gguf", bos_text="", eos_text="", control_texts=ControlTexts([]))


def ask(**options: object) -> Conversation:
    return conversation(user("q"), **options)  # type: ignore[arg-type]  # any option


@pytest.mark.parametrize(
    ("source", "support"),
    [
        (QWEN, ThinkingSupport(Mode.SWITCHABLE, (), True)),
        (DEEPSEEK, ThinkingSupport(Mode.SWITCHABLE, (), True)),
        (R1, ThinkingSupport(Mode.ALWAYS, (), True)),
        (GPT_OSS, ThinkingSupport(Mode.ALWAYS, FREE, True)),
        (MAGISTRAL, ThinkingSupport(Mode.SWITCHABLE, (Effort.NONE, Effort.HIGH), True)),
        (SOLAR, ThinkingSupport(Mode.ALWAYS, FREE, True)),
        (PLAIN, ThinkingSupport()),
    ],
)
async def test_support_is_detected_from_the_template(source: str, support: ThinkingSupport) -> None:
    """By rendering it with and without each variable."""
    templates = ChatTemplates(InlineJobs())

    assert (await templates.find_format(make_template(source)))[1] == support
    assert (await templates.render(make_template(source), ask())).thinking == support


async def test_a_model_without_a_template_is_not_known_to_reason() -> None:
    """A budget is kept if it does, and an operator may state the format."""
    template = ModelTemplate.for_model(None, "", "", [])
    stated = ModelTemplate.for_model(PLAIN, "", "", [], FormatOverride(None, ReasoningFormat.SEED))

    templates = ChatTemplates(InlineJobs())
    assert (await templates.find_format(template))[1] == ThinkingSupport(keeps_budget=True)
    assert (await templates.find_format(stated))[1].mode is ThinkingMode.ALWAYS


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (QWEN, {"enable_thinking": False}, "<think></think>"),
        (QWEN, {"reasoning_effort": Effort.NONE}, "<think></think>"),
        (QWEN, {"thinking_budget_tokens": 0}, "<think></think>"),
        (QWEN, {"thinking_budget_tokens": 7}, ""),
        (QWEN, {"reasoning_effort": Effort.LOW}, ""),
        (DEEPSEEK, {}, "</think>"),
        (DEEPSEEK, {"enable_thinking": True}, "<think>"),
        (DEEPSEEK, {"reasoning_effort": Effort.LOW}, "<think>"),
        (DEEPSEEK, {"kwargs_json": '{"thinking": true}'}, "<think>"),
        (GPT_OSS, {"reasoning_effort": Effort.MINIMAL}, GPT_OSS[:33] + "low"),
        (GPT_OSS, {"reasoning_effort": Effort.MAX}, GPT_OSS[:33] + "high"),
        (GPT_OSS, {"reasoning_effort": Effort.NONE}, GPT_OSS[:33] + "medium"),
        (GPT_OSS, {"enable_thinking": True}, GPT_OSS[:33] + "medium"),
        (GPT_OSS, {"kwargs_json": '{"reasoning_effort": "x"}'}, GPT_OSS[:33] + "x"),
        (MAGISTRAL, {"enable_thinking": True}, "high"),
        (MAGISTRAL, {"reasoning_effort": Effort.LOW}, "high"),
        (MAGISTRAL, {"enable_thinking": False}, "none"),
        (MAGISTRAL, {}, "none"),
    ],
)
async def test_options_become_the_variables_of_the_template(
    source: str, options: dict[str, object], text: str
) -> None:
    """An effort that it does not know becomes the nearest; variables of the request win."""
    prompt = await ChatTemplates(InlineJobs()).render(make_template(source), ask(**options))

    assert prompt.text == text


@pytest.mark.parametrize(
    ("mode", "efforts", "options", "ignored"),
    [
        (Mode.NONE, (), {"enable_thinking": True}, ("enable_thinking",)),
        (Mode.NONE, (), {"enable_thinking": False}, ()),
        (Mode.NONE, (), {"reasoning_effort": Effort.HIGH}, ("reasoning_effort",)),
        (Mode.NONE, (), {"reasoning_effort": Effort.NONE}, ()),
        (Mode.NONE, (), {"thinking_budget_tokens": 5}, ("thinking_budget_tokens",)),
        (Mode.NONE, (), {"thinking_budget_tokens": 0}, ()),
        (Mode.SWITCHABLE, (), {"reasoning_effort": Effort.HIGH}, ()),
        (Mode.ALWAYS, (), {"reasoning_effort": Effort.HIGH}, ("reasoning_effort",)),
        (Mode.ALWAYS, FREE, {"reasoning_effort": Effort.HIGH}, ()),
        (Mode.ALWAYS, (), {"enable_thinking": False, "thinking_budget_tokens": 5}, ()),
    ],
)
def test_options_without_effect_are_named(
    mode: ThinkingMode,
    efforts: tuple[ReasoningEffort, ...],
    options: dict[str, object],
    ignored: tuple[str, ...],
) -> None:
    """Disabling what a model does not do has its effect."""
    support = ThinkingSupport(mode, efforts, keeps_budget=mode is not Mode.NONE)

    assert tuple(ignored_options(ask(**options), support)) == ignored


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({}, None),
        ({"thinking_budget_tokens": 5}, 5),
        ({"thinking_budget_tokens": 5, "enable_thinking": False}, 0),
        ({"reasoning_effort": Effort.NONE}, 0),
        ({"reasoning_effort": Effort.LOW}, None),
    ],
)
def test_disabled_thinking_is_a_budget_of_zero(
    options: dict[str, object], budget: int | None
) -> None:
    """For templates that cannot disable it, and models that begin anyway."""
    assert token_budget(ask(**options)) == budget


def test_a_request_may_require_a_model_that_reasons() -> None:
    """Only if it enables thinking."""
    required = ask(enable_thinking=True, require_thinking=True)

    with pytest.raises(InvalidField, match="'m' does not support thinking"):
        check_thinking(required, ThinkingSupport(), "m")
    check_thinking(required, ThinkingSupport(Mode.ALWAYS), "m")
    check_thinking(ask(enable_thinking=False, require_thinking=True), ThinkingSupport(), "m")
