"""The training text is what a server renders."""

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


def trained_text(made: Conversation) -> str:
    """The conversation as trained, up to the last answer."""
    *earlier, last = made.exchanges
    pieces = system_pieces(made)
    for exchange in earlier:
        pieces += exchange_pieces(made, exchange, Shown.HISTORY)
    pieces += exchange_pieces(made, last, Shown.ANSWERING)
    text = "".join(piece.text for piece in pieces)
    text = text[: text.rindex(GENERATION) + len(GENERATION)]
    return text + ("<think>\n\n</think>\n\n" if made.thinking is False else "")


def test_the_trained_text_is_what_the_server_renders() -> None:
    """Tools, calls, results, thoughts: what is learned is what will be asked."""
    template = build_environment().from_string(TEMPLATE.read_text().removesuffix("\n"))
    rng = Random(1)
    compared = 0
    for _ in range(150):
        made = conversation(rng, 400)
        if made.compact or made.sorted_tools:  # on purpose as other servers render it
            continue
        thinking = {} if made.thinking is None else {"enable_thinking": made.thinking}
        rendered = template.render(
            messages=messages(made.system, made.exchanges[:-1], made.exchanges[-1]),
            tools=made.tools or None,
            add_generation_prompt=True,
            **thinking,
        )
        assert rendered == trained_text(made)
        compared += 1

    assert compared > 100


def test_an_answer_without_its_thought_is_shown_but_not_learned() -> None:
    """Else the model would learn not to think when it was asked to."""
    made = Conversation(thinking=True)
    exchange = Exchange("facts", "", "Why?", "Because.", thought="Hm.")
    whole = exchange_pieces(made, exchange)
    history = exchange_pieces(made, exchange, Shown.HISTORY)

    assert [piece.text for piece in whole if piece.weight >= Weight.ANSWER] == [
        "<think>\nHm.\n</think>\n\n",
        "Because.<|im_end|>",
    ]
    assert not [piece for piece in history if piece.weight >= Weight.ANSWER]


def test_the_empty_thought_belongs_to_the_prompt() -> None:
    """With thinking off the server writes it, so it is not learned."""
    pieces = exchange_pieces(Conversation(thinking=False), Exchange("facts", "", "Why?", "So."))

    assert [piece.weight for piece in pieces if "<think>" in piece.text] == [Weight.NONE]
