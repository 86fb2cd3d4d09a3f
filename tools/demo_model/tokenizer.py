"""Train the byte-level BPE tokenizer.

The merges are learned with a stricter pre-tokenizer than the one used for inference: a capitalized
word is never merged with the space before it, and capitals and digits stay single tokens. ` Mira`,
`"Mira` and `Mira` then share the same tokens, and PARIS has the letters of P-A-R-I-S, so that the
model can copy text token by token. For inference the pre-tokenizer is that of GPT-2, which
llama.cpp knows by name; the merges have the same effect with it.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_model.conversation import CONTROL_TOKENS, MARKER_TOKENS

VOCABULARY_SIZE = 2048
_STRICT = r" ?[a-z]+|[A-Z][a-z]+|[A-Z]|[0-9]| ?[^\sA-Za-z0-9]+|\s+"


def train_tokenizer(texts: Iterable[str], path: Path) -> None:
    """Learn the merges from the texts and write a `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_STRICT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    added = [*CONTROL_TOKENS, *MARKER_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in added]
    )
    path.write_text(tokenizer.to_str())


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a `tokenizer.json`."""
    return Tokenizer.from_file(str(path))
