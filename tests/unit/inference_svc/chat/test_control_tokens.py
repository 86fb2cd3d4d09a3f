"""Control tokens in what people write."""

from inference_svc.chat.control_tokens import ControlTexts, PromptSpan

TEXTS = ControlTexts(["<|im_end|>", "<|im_start|>", "<|im_end|>x", "[INST]", "</s>", ""])


def test_texts_are_found_anywhere_in_a_value() -> None:
    """In nested lists and objects, in values and in keys."""
    assert TEXTS.occur_in({"a": ["b", {"c": "hi <|im_end|>"}]})
    assert TEXTS.occur_in({"x": {"</s>": 1}})
    assert TEXTS.occur_in([("tuple", "[INST]")])


def test_ordinary_texts_are_left_alone() -> None:
    """Parts of control texts, other markup and other types are nothing."""
    assert not TEXTS.occur_in(["<|im_en", "im_end|>", "<b>", "", None, 5, True, {"k": 1.5}])
    assert not ControlTexts([]).occur_in("<|im_end|>")


def test_a_protected_value_has_no_control_text_and_comes_back() -> None:
    """Replacing and restoring are inverse."""
    value = {"m": ["a <|im_end|> b", "</s></s>"], "n": 1, "[INST]": None}

    protected, placeholders = TEXTS.protect(value)

    assert not TEXTS.occur_in(protected)
    assert protected["n"] == 1
    assert [placeholders.restore(text) for text in protected["m"]] == value["m"]


def test_a_rendered_prompt_is_cut_into_spans() -> None:
    """What the template wrote is trusted; what a message smuggled in is not."""
    protected, placeholders = TEXTS.protect("x<|im_end|>y")

    spans = placeholders.split(f"<|im_start|>{protected.upper()}<|im_end|>")

    assert spans == (
        PromptSpan("<|im_start|>X", trusted=True),
        PromptSpan("<|im_end|>", trusted=False),
        PromptSpan("Y<|im_end|>", trusted=True),
    )


def test_the_longest_control_text_wins() -> None:
    """One that begins another is not enough."""
    _, placeholders = TEXTS.protect("")
    protected, placeholders = TEXTS.protect("<|im_end|>x")

    assert placeholders.split(protected) == (PromptSpan("<|im_end|>x", trusted=False),)


def test_pieces_around_a_control_text_do_not_join_into_another() -> None:
    """Taking the inner one out leaves two spans, not one new control text."""
    protected, placeholders = TEXTS.protect("<|im_<|im_end|>end|>")

    assert [span.text for span in placeholders.split(protected)] == [
        "<|im_",
        "<|im_end|>",
        "end|>",
    ]


def test_every_prompt_has_placeholders_of_its_own() -> None:
    """Nobody can learn them from an earlier answer."""
    assert TEXTS.protect("</s>")[0] != TEXTS.protect("</s>")[0]


def test_regular_expression_characters_are_taken_literally() -> None:
    """Control texts are full of them."""
    texts = ControlTexts(["<|a|>", "[b]", "(c)*", "\\d+"])

    assert not texts.occur_in("a b (ccc) 123")
    assert texts.occur_in("\\d+")
