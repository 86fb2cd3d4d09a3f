"""Control tokens in the texts of callers."""

import json

import pytest

from inference_svc.chat.control_tokens import ControlTexts, PromptSpan

TEXTS = ControlTexts(["<|im_end|>", "<|im_start|>", "<|im_end|>x", "[INST]", "</s>", ""])


def occur_in(texts: ControlTexts, value: object) -> bool:
    return json.dumps(texts.protect(value)[0]) != json.dumps(value)


@pytest.mark.parametrize(
    "value",
    [{"a": ["b", {"c": "hi <|im_end|>"}]}, {"x": {"</s>": 1}}, [("tuple", "[INST]")]],
)
def test_control_texts_are_found_in_nested_values(value: object) -> None:
    assert occur_in(TEXTS, value)


def test_other_texts_are_not_control_texts() -> None:
    """Such as incomplete control texts, other markup and other types."""
    assert not occur_in(TEXTS, ["<|im_en", "im_end|>", "<b>", "", None, 5, True, {"k": 1.5}])
    assert not occur_in(ControlTexts([]), "<|im_end|>")


def test_a_protected_value_can_be_restored() -> None:
    """It has no control text."""
    value = {"m": ["a <|im_end|> b", "</s></s>"], "n": 1, "[INST]": None}

    protected, placeholders = TEXTS.protect(value)

    assert not occur_in(TEXTS, protected)
    assert protected["n"] == 1
    parts = [placeholders.split(text) for text in protected["m"]]
    assert ["".join(span.text for span in spans) for spans in parts] == value["m"]


def test_a_rendered_prompt_is_split_into_spans() -> None:
    """Text of the template is trusted; control texts of a message are not."""
    protected, placeholders = TEXTS.protect("x<|im_end|>y")

    spans = placeholders.split(f"<|im_start|>{protected.upper()}<|im_end|>")

    assert spans == (
        PromptSpan("<|im_start|>X", trusted=True),
        PromptSpan("<|im_end|>", trusted=False),
        PromptSpan("Y<|im_end|>", trusted=True),
    )


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        # The longest control text is replaced, not its prefix.
        ("<|im_end|>x", ["<|im_end|>x"]),
        # The texts around a control text are not joined to another one.
        ("<|im_<|im_end|>end|>", ["<|im_", "<|im_end|>", "end|>"]),
    ],
)
def test_a_control_text_is_a_separate_span(text: str, spans: list[str]) -> None:
    protected, placeholders = TEXTS.protect(text)

    split = placeholders.split(protected)
    assert [span.text for span in split] == spans
    assert all(span.trusted is not occur_in(TEXTS, span.text) for span in split)


def test_placeholders_are_different_in_every_prompt() -> None:
    """They cannot be learned from an earlier output."""
    assert TEXTS.protect("</s>")[0] != TEXTS.protect("</s>")[0]


def test_characters_of_regular_expressions_are_literal() -> None:
    """Control texts often have them."""
    texts = ControlTexts(["<|a|>", "[b]", "(c)*", "\\d+"])

    assert not occur_in(texts, "a b (ccc) 123")
    assert occur_in(texts, "\\d+")
