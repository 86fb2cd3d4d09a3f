"""Which notation a template stands for, and what operators say instead."""

import pytest

from inference_svc.chat.parsers import (
    FormatOverride,
    ReasoningFormat,
    ToolCallFormat,
    TurnFormat,
    TurnParser,
    detect_format,
)
from inference_svc.chat.parsers.formats import READERS, REASONING_MARKERS
from inference_svc.models.metadata import describe_model
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.turns import TOOLS

# What is peculiar to each family's template; the rest of a template says nothing.
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
    "{{ '<|im_system|>tool_declare<|im_middle|>' }}{{ tools }}": ("kimi", "off"),
    "<|START_THINKING|>{{ plan }}<|END_THINKING|><|START_ACTION|>[\n"
    '    {"tool_call_id": "{{ i }}", "tool_name": "{{ name }}"}]<|END_ACTION|>': (
        "cohere",
        "cohere",
    ),
    "{%- set tool_calls_token = '<|tools_prefix|>' -%}{{ tool_calls_token + '[' }}": (
        "apertus",
        "off",
    ),
    "{{ '<functions>' + tools + '</functions>' }}{{ '<function_calls>' }}{{ '<think>' }}": (
        "pythonic",
        "off",
    ),
    "in <tool_call></tool_call> tags: {{ '\\n<tool_calls>[' }}{{ '</thinking>' }}": (
        "json",
        "thinking",
    ),
    "{{ '<tool_calls>' }}{{ '<|tool_call|>' }}{{ '<TOOLCALL>[' }}": ("json", "off"),
    # Another family's function calls.
    "{{ '<function_calls>' }}{{ '<invoke name=' }}": ("json", "off"),
}


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.items())
def test_the_format_is_told_from_the_template(template: str, expected: tuple[str, str]) -> None:
    """By the markers in which it writes earlier turns."""
    chosen = detect_format(template)

    assert (chosen.tool_calls, chosen.reasoning) == expected
    assert not chosen.starts_in_reasoning


def test_the_demo_model_writes_as_qwen_does() -> None:
    """Its own template says so."""
    template = describe_model(BUNDLED_PATH, "m").chat_template or ""

    assert detect_format(template) == TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)


def test_a_template_that_does_not_understand_tools_gets_them_in_hermes_notation() -> None:
    """They are described so, and so are the answers; the thinking is the model's own."""
    chosen = detect_format("[/THINK]", supports_tools=False)

    assert chosen == TurnFormat(ReasoningFormat.MISTRAL, ToolCallFormat.HERMES)


def test_texts_around_answers_reach_the_parser() -> None:
    """It takes them out; other families have none."""
    with_frames = {name for name in ToolCallFormat if TurnFormat(tool_calls=name).frame_texts}
    cohere = TurnFormat(tool_calls=ToolCallFormat.COHERE)

    assert with_frames == {ToolCallFormat.COHERE}
    assert set(cohere.frame_texts) < set(cohere.marker_texts)


def test_every_notation_has_a_reader_and_markers() -> None:
    """Nothing that can be chosen is without code behind it."""
    assert {*READERS, ToolCallFormat.OFF, ToolCallFormat.HARMONY} == set(ToolCallFormat)
    assert {*REASONING_MARKERS, ReasoningFormat.OFF} == set(ReasoningFormat)
    for calls in ToolCallFormat:
        assert bool(TurnFormat(tool_calls=calls).marker_texts) == (calls != "off")


QWEN = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.HERMES)
GPT_OSS = TurnFormat(ReasoningFormat.HARMONY, ToolCallFormat.HARMONY)


@pytest.mark.parametrize(
    ("told", "override", "expected"),
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
def test_operators_have_the_last_word(
    told: TurnFormat, override: FormatOverride, expected: tuple[str, str, bool]
) -> None:
    """What they leave unset is as the template tells; channels hold the whole turn."""
    chosen = override.apply(told)

    assert (chosen.tool_calls, chosen.reasoning, chosen.starts_in_reasoning) == expected


def test_ids_have_the_form_that_the_models_template_accepts() -> None:
    """Mistral's refuse all but nine letters and digits, and keep the model's own ids; so do Kimi's,
    whose ids say the name, as far as clients may send them back and
    no earlier turn has them."""
    text = "[TOOL_CALLS]get_time[ARGS]{}[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{}"
    mistral = TurnParser(TurnFormat(tool_calls=ToolCallFormat.MISTRAL), tools=TOOLS)
    hermes = TurnParser(QWEN, tools=TOOLS)

    first, second = mistral.feed(text).tool_calls
    (other,) = hermes.feed('<tool_call>{"name": "get_time"}').tool_calls

    kimi = TurnParser(TurnFormat(tool_calls=ToolCallFormat.KIMI), tools=TOOLS)
    begin, arguments = "<|tool_call_begin|>", "<|tool_call_argument_begin|>{}<|tool_call_end|>"
    long = f"functions.{'n' * 64}:5"
    ids = ("functions.get_time:3", "functions.get_time:3", "get_time:4", "functions.get_time", long)
    kept, *made = kimi.feed("".join(f"{begin}{each}{arguments}" for each in ids)).tool_calls

    again = TurnParser(
        TurnFormat(tool_calls=ToolCallFormat.KIMI), tools=TOOLS, used_ids={"functions.get_time:3"}
    )
    (other_turn,) = again.feed(f"{begin}functions.get_time:3{arguments}").tool_calls

    assert kept.id == "functions.get_time:3"
    assert other_turn.id.startswith("call_")
    assert [call.id.startswith("call_") for call in made] == [True] * 4
    assert len(first.id) == 9
    assert first.id.isalnum()
    assert second.id == "a1b2c3d4e"
    assert other.id.startswith("call_")
