"""Training text compared with the text that a server renders."""

from random import Random

from inference_svc.chat.template_job import build_environment
from tools.demo_model.conversation import (
    TEMPLATE,
    Conversation,
    Exchange,
    Shown,
    Weight,
    exchange_pieces,
    messages,
    system_pieces,
)
from tools.demo_model.mixture import conversation

GENERATION = "<|im_start|>assistant\n"


def training_text(made: Conversation) -> str:
    """Training text of a conversation, up to the last answer."""
    *earlier, last = made.exchanges
    pieces = system_pieces(made)
    for exchange in earlier:
        pieces += exchange_pieces(made, exchange, Shown.HISTORY)
    pieces += exchange_pieces(made, last, Shown.ANSWERING)
    text = "".join(piece.text for piece in pieces)
    text = text[: text.rindex(GENERATION) + len(GENERATION)]
    return text + ("<think>\n\n</think>\n\n" if made.thinking is False else "")


def test_the_training_text_equals_the_rendered_template() -> None:
    """With tools, calls, results and reasoning."""
    template = build_environment().from_string(TEMPLATE.read_text().removesuffix("\n"))
    rng = Random(1)
    compared = 0
    for _ in range(150):
        made = conversation(rng, 400)
        if made.compact or made.sorted_tools:  # deliberately rendered as other servers do
            continue
        thinking = {} if made.thinking is None else {"enable_thinking": made.thinking}
        rendered = template.render(
            messages=messages(made.system, made.exchanges[:-1], made.exchanges[-1]),
            tools=made.tools or None,
            add_generation_prompt=True,
            **thinking,
        )
        assert rendered == training_text(made)
        compared += 1

    assert compared > 100


def test_an_answer_without_its_reasoning_has_only_context_weight() -> None:
    """Otherwise the model would learn to skip reasoning when it is enabled."""
    made = Conversation(thinking=True)
    exchange = Exchange("facts", "", "Why?", "Because.", thought="Hm.")
    whole = exchange_pieces(made, exchange)
    history = exchange_pieces(made, exchange, Shown.HISTORY)

    assert [piece.text for piece in whole if piece.weight >= Weight.ANSWER] == [
        "<think>\nHm.\n</think>\n\n",
        "Because.<|im_end|>",
    ]
    assert not [piece for piece in history if piece.weight >= Weight.ANSWER]


def test_empty_reasoning_has_no_weight() -> None:
    """With reasoning disabled, the server adds it to the prompt."""
    pieces = exchange_pieces(Conversation(thinking=False), Exchange("facts", "", "Why?", "So."))

    assert [piece.weight for piece in pieces if "<think>" in piece.text] == [Weight.NONE]
