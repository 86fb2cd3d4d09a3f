"""Trains the byte-level BPE tokenizer, so that copying is a plain copy of tokens.

The merges are learned with a stricter split than the one in use: a capitalised word never takes the
space before it, capitals and digits stay single. ` Mira`, `"Mira` and `Mira` are then the same
tokens, and the letters of PARIS are those of P-A-R-I-S. In use the split is the stock one of GPT-2,
which llama.cpp knows by name; what decides is the merges.
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
    """The tokenizer of a `tokenizer.json`."""
    return Tokenizer.from_file(str(path))
