"""Texts for comparing the trained tokenizer with llama.cpp's."""

from random import Random

from tools.demo_model.conversation import MARKER_TOKENS, exchange_pieces, system_pieces
from tools.demo_model.mixture import conversation

_SEED = 5
_ALPHABET = (
    "aeinrst AEMT 0123456789 \n\t\r.,:;!?'\"{}[]()<>|/_-+*=äßéñçЖ你好한🐎👩\u200d🚀\u00a0\u2028\x07"
)
_EDGE_CASES = (
    "",
    " ",
    "  two  spaces  ",
    "\n\n\n",
    "don't can't we'll I'm it's 'stone'",
    "PARIS Paris paris",
    "3.14159 1,000,000 007",
    "a\r\nb\rc",
    "naïve café Straße",
    "日本語のテキスト",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<tool_call>\n{}\n</tool_call>",
    "<|im_start|><|im_end|><think></think>",
    "almost <|im_start| and <tool_cal>",
)


def probes() -> list[str]:
    """Generate turns, edge cases, and random characters with markers between them."""
    rng = Random(_SEED)
    texts = list(_EDGE_CASES)
    for _ in range(40):
        made = conversation(rng, 256)
        texts += [piece.text for piece in system_pieces(made)]
        texts += [piece.text for one in made.exchanges for piece in exchange_pieces(made, one)]
    for _ in range(300):
        characters = [rng.choice(_ALPHABET) for _ in range(rng.randint(1, 60))]
        if rng.random() < 0.2:
            characters.insert(rng.randrange(len(characters)), rng.choice(MARKER_TOKENS))
        texts.append("".join(characters))
    return texts
