"""Detection of the output format from a chat template, and overrides by configuration."""

import re
from pathlib import Path

import pytest

from inference_svc.chat.parsers.formats import (
    FAMILIES,
    REASONING_MARKERS,
    FormatOverride,
    ReasoningFormat,
    ToolCallFormat,
    TurnFormat,
    detect_format,
)
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.models.metadata import describe_model
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.turns import TOOLS, feed

QWEN = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
GPT_OSS = TurnFormat(ReasoningFormat.HARMONY, ToolCallFormat.HARMONY)
# The parts of each model family's template that identify its format.
TEMPLATES = {
    "{{ '<tool_call>\\n' }}{{ '</think>' }}": ("hermes", "think"),
    "{{ '<|start_header_id|>ipython' }}{{ '\"parameters\": ' }}": ("llama", "off"),
    "{{ '<|python_tag|>' }}": ("llama", "off"),
    "{{ '<|header_start|>' }}{{ '\"parameters\": ' }}": ("llama", "off"),
    "{{ '<|tool_list_start|>' }}": ("pythonic", "off"),
    "{{ '[TOOL_CALLS] [' }}": ("mistral", "off"),
    "{{ '[TOOL_CALLS]' + name + '[ARGS]' }}{{ '[/THINK]' }}": ("mistral", "mistral"),
    "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}{{ '</think>' }}": ("deepseek", "think"),
    "{% set dsml_token = '｜DSML｜' %}{{ '</think>' }}": ("deepseek-v3.2", "think"),
    "{{ '<tool_call>\\n<function=' }}{{ '<parameter=' }}": ("qwen-coder", "off"),
    "{{ '<seed:tool_call>\\n<function=' }}{{ '<parameter=' }}{{ '</seed:think>' }}": (
        "qwen-coder",
        "seed",
    ),
    "{{ '<tool_call>' + name }}{{ '<arg_key>' }}{{ '</think>' }}": ("glm", "think"),
    "{{ '<minimax:tool_call>' }}{{ '</think>' }}": ("minimax", "think"),
    "{{ '<|tool_call>call:' }}{{ '<|channel>thought\\n<channel|>' }}": ("gemma", "gemma"),
    "{{ '<start_function_call>call:' }}": ("gemma", "off"),
    "{{ '<|start|>assistant<|channel|>final<|message|>' }}{{ '<|end|>' }}": ("harmony", "harmony"),
    "{{ '<|user|>' + m.content + '<|end|>' }}": ("json", "off"),
    "{{ '<thinking></thinking>' }}": ("json", "thinking"),
    "{{ '<|END_THINKING|>' }}": ("json", "cohere"),
    "<|tool_calls_section_begin|>{% for call in calls %}<|tool_call_begin|>{{ call.id }}"
    "<|tool_call_argument_begin|>{% endfor %}<think></think>": ("kimi", "think"),
    "{{ '<|im_system|>tool_declare<|im_middle|>' }}{{ tools }}": ("kimi", "think"),
    "<|START_THINKING|>{{ plan }}<|END_THINKING|><|START_ACTION|>[\n"
    '    {"tool_call_id": "{{ i }}", "tool_name": "{{ name }}"}]<|END_ACTION|>': (
        "cohere",
        "cohere",
    ),
    "{%- set tool_calls_token = '<|tools_prefix|>' -%}{{ tool_calls_token + '[' }}": (
        "apertus",
        "off",
    ),
    "{%- set tool_calls_token = '<|tools_prefix|>' -%}{%- set inner_token = '<|inner_prefix|>' -%}"
    "{%- set outer_token = '<|inner_suffix|>' -%}": ("apertus", "apertus"),
    "{{ '<functions>' + tools + '</functions>' }}{{ '<function_calls>' }}{{ '<think>' }}": (
        "pythonic",
        "off",
    ),
    "in <tool_call></tool_call> tags: {{ '\\n<tool_calls>[' }}{{ '</thinking>' }}": (
        "json",
        "thinking",
    ),
    "{{ '<tool_calls>' }}{{ '<|tool_call|>' }}{{ '<TOOLCALL>[' }}": ("json", "off"),
    "{{ 'Use exact format: [func_name1(param1=value1), func_name2(...)]' }}": ("pythonic", "off"),
    # The function calls of an unsupported family.
    "{{ '<function_calls>' }}{{ '<invoke name=' }}": ("json", "off"),
}


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.items())
def test_the_format_is_detected_from_the_template(template: str, expected: tuple[str, str]) -> None:
    """By the markers of earlier turns."""
    detected = detect_format(template)

    assert (detected.tool_calls, detected.reasoning) == expected
    assert not detected.starts_in_reasoning


def test_the_demo_model_has_the_format_of_qwen() -> None:
    template = describe_model(BUNDLED_PATH, "m").chat_template or ""

    assert detect_format(template) == QWEN


def test_hermes_calls_are_used_if_a_template_does_not_support_tools() -> None:
    """Tools are described in this format; reasoning has the template's format."""
    detected = detect_format("[/THINK]", supports_tools=False)

    assert detected == TurnFormat(ReasoningFormat.MISTRAL, ToolCallFormat.HERMES)


def test_every_format_has_markers() -> None:
    """All values of both enums are implemented."""
    assert {*FAMILIES, ToolCallFormat.OFF} == set(ToolCallFormat)
    assert {*REASONING_MARKERS, ReasoningFormat.OFF} == set(ReasoningFormat)
    for calls in ToolCallFormat:
        assert bool(TurnFormat(tool_calls=calls).marker_texts) == (calls != "off")


@pytest.mark.parametrize(
    ("detected", "override", "expected"),
    [
        (QWEN, FormatOverride(), ("hermes", "think", False)),
        (QWEN, FormatOverride(tool_calls=ToolCallFormat.LLAMA), ("llama", "think", False)),
        (QWEN, FormatOverride(tool_calls=ToolCallFormat.OFF), ("off", "think", False)),
        (QWEN, FormatOverride(reasoning=ReasoningFormat.OFF), ("hermes", "off", False)),
        (QWEN, FormatOverride(starts_in_reasoning=True), ("hermes", "think", True)),
        (QWEN, FormatOverride(tool_calls=ToolCallFormat.HARMONY), ("harmony", "harmony", False)),
        (QWEN, FormatOverride(reasoning=ReasoningFormat.HARMONY), ("harmony", "harmony", False)),
        (GPT_OSS, FormatOverride(tool_calls=ToolCallFormat.HERMES), ("hermes", "off", False)),
        (GPT_OSS, FormatOverride(tool_calls=ToolCallFormat.OFF), ("off", "harmony", False)),
    ],
)
def test_an_override_replaces_the_detected_format(
    detected: TurnFormat, override: FormatOverride, expected: tuple[str, str, bool]
) -> None:
    """Unset fields are detected; Harmony is used for both calls and reasoning or for neither."""
    result = override.apply(detected)

    assert (result.tool_calls, result.reasoning, result.starts_in_reasoning) == expected


def _call_ids(turn_format: TurnFormat, text: str, used_ids: frozenset[str]) -> list[str]:
    parser = TurnParser(turn_format, tools=TOOLS, used_ids=used_ids)
    return [call.id for call in feed(parser, text).tool_calls]


def test_hermes_calls_have_ids_of_openais_form() -> None:
    """The model does not generate ids."""
    (call_id,) = _call_ids(QWEN, '<tool_call>{"name": "get_time"}', frozenset())

    assert call_id.startswith("call_")


def test_mistral_ids_are_nine_letters_and_digits() -> None:
    """Other ids are refused by its template; an id of the model is used."""
    text = "[TOOL_CALLS]get_time[ARGS]{}[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{}"
    generated, own = _call_ids(TurnFormat(tool_calls=ToolCallFormat.MISTRAL), text, frozenset())

    assert len(generated) == 9
    assert generated.isalnum()
    assert own == "a1b2c3d4e"


def test_kimi_ids_are_used_if_they_are_valid_and_unique() -> None:
    """Unique among all turns; clients must be able to send them back."""
    kimi = TurnFormat(tool_calls=ToolCallFormat.KIMI)
    own, long = "functions.get_time:3", f"functions.{'n' * 64}:5"
    text = "".join(
        f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        for call_id in (own, own, "get_time:4", "functions.get_time", long)
    )

    for used_ids, expected in ((frozenset(), [own]), (frozenset({own}), [])):
        call_ids = _call_ids(kimi, text, used_ids)
        assert len(call_ids) == 5
        assert [call_id for call_id in call_ids if not call_id.startswith("call_")] == expected


def test_every_format_of_calls_is_described() -> None:
    """In the table of docs/operate/configure.md, each in one row."""
    page = (Path(__file__).parents[5] / "docs" / "operate" / "configure.md").read_text("utf-8")
    table = page.partition("| `tool_calls` |")[2].partition("\n\n")[0]
    described = re.findall(
        r"`([a-z0-9.-]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.M))
    )
    in_text = re.findall(r"`(deepseek-v3.2)` writes tags", table)

    assert sorted([*described, *in_text]) == sorted(ToolCallFormat)


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        ("{{ '</think>' }}{{ '<answer>' }}", ("<answer>", "</answer>")),
        ("{{ '</think>' }}<|extra_0|>", ("<answer>", "</answer>")),
        ("<think></think> and <response></response>", ("<response>", "</response>")),
        ("{{ '[BEGIN FINAL RESPONSE]' }}", ("", "[END FINAL RESPONSE]")),
        ("{{ '</think>' }}{{ '<response>' }}{{ result }}{{ '</response>' }}", ("", "")),
        ("Write <answer></answer>.", ("", "")),
    ],
    ids=["answer", "Hunyuan A13B", "Granite 3.3", "Apriel", "a tool's response", "no reasoning"],
)
def test_the_texts_around_answers_are_detected(template: str, answer: tuple[str, str]) -> None:
    """Of models that reason. Without their format of reasoning they are not removed."""
    detected = detect_format(template)

    assert detected.answer == answer
    assert set(filter(None, answer)) <= {*detected.marker_texts}
    assert FormatOverride().apply(detected) == detected
    assert FormatOverride(reasoning=ReasoningFormat.OFF).apply(detected).answer == ("", "")
