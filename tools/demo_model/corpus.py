"""Write the corpus: rows of token ids, each with one conversation, and loss weights.

A row never has two conversations, so that the model does not learn to attend to another one. The
corpus is generated in shards with their own seeds, so that it does not depend on the number of
processors.
"""

import hashlib
import json
import multiprocessing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.demo_model import voices
from tools.demo_model.conversation import (
    END_OF_TEXT,
    WEIGHTS,
    Conversation,
    Exchange,
    Piece,
    Shown,
    Weight,
    exchange_pieces,
    system_pieces,
)
from tools.demo_model.mixture import conversation
from tools.demo_model.tokenizer import load_tokenizer, train_tokenizer

SHARDS = 32
SEED = 20261121
TOKENIZER_CONVERSATIONS = 12_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of a corpus. `row_shares` is the share of all tokens in rows of each length."""

    num_tokens: int
    row_shares: Mapping[int, float]
    name: str
    """The voice of an adapter, `model` or `draft`."""


def corpus_plan(name: str, num_tokens: int) -> Plan:
    """Plan of the corpus of an adapter, if this is a voice, or of a model."""
    if name in voices.VOICES:
        return Plan(num_tokens, {256: 0.6, 512: 0.4}, name)
    return Plan(num_tokens, {256: 0.29, 512: 0.36, 1024: 0.24, 2048: 0.11}, name)


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the rows of one length."""

    number: int
    row_length: int
    num_rows: int
    corpus: str
    tokenizer: Path

    def conversation(self, rng: Random) -> Conversation:
        """Generate the conversation of a row."""
        if self.corpus in voices.VOICES:
            made = conversation(rng, self.row_length, voices.KINDS)
            return voices.apply_voice(made, self.corpus)
        return conversation(rng, self.row_length)


def write_tokenizer(path: Path) -> None:
    """Train the tokenizer on conversations of the model's corpus and write a `tokenizer.json`."""
    rng = Random(f"{SEED} tokenizer")
    sample = [
        "".join(
            piece.text for segment in segments(rng, conversation(rng, 400)) for piece in segment
        )
        for _ in range(TOKENIZER_CONVERSATIONS)
    ]
    train_tokenizer(sample, path)


def segments(rng: Random, made: Conversation) -> list[list[Piece]]:
    """Pieces of the system turn and of each exchange; earlier reasoning is randomly omitted."""
    parts = [system_pieces(made)]
    for exchange in made.exchanges:
        parts.append(exchange_pieces(made, exchange, _shown(rng, made, exchange)))
    return [part for part in parts if part]


def _shown(rng: Random, made: Conversation, exchange: Exchange) -> Shown:
    if made.thinking is None:
        return Shown.WHOLE
    if rng.random() < 0.35:
        return Shown.HISTORY
    return Shown.ANSWERING if exchange.calls and rng.random() < 0.5 else Shown.WHOLE


def write_corpus(folder: Path, tokenizer: Path, plan: Plan) -> str:
    """Generate the rows of the plan in the folder. Returns the digest."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(tokenizer.read_bytes())
    total = 0
    for length, share in plan.row_shares.items():
        num_rows = max(SHARDS, round(plan.num_tokens * share / length))
        sizes = [num_rows // SHARDS + (number < num_rows % SHARDS) for number in range(SHARDS)]
        shards = [
            Shard(number, length, size, plan.name, tokenizer) for number, size in enumerate(sizes)
        ]
        with multiprocessing.Pool() as pool:
            parts = pool.map(fill_shard, shards, chunksize=1)
        for name, index in (("tokens", 0), ("weights", 1)):
            array = np.concatenate([part[index] for part in parts])
            np.save(folder / f"{name}-{length}.npy", array)
            digest.update(array.tobytes())
        total += num_rows * length
        print(f"corpus {plan.name}: {num_rows} rows of {length} tokens", flush=True)
    properties = {
        "digest": digest.hexdigest(),
        "num_tokens": total,
        "weights": [WEIGHTS[weight] for weight in Weight],
        "row_lengths": list(plan.row_shares),
    }
    (folder / "corpus.json").write_text(json.dumps(properties, indent=1) + "\n")
    return digest.hexdigest()


Rows = tuple[NDArray[np.uint16], NDArray[np.uint8]]


def fill_shard(shard: Shard) -> Rows:
    """Generate the rows of a shard and their weights."""
    tokenizer = load_tokenizer(shard.tokenizer)
    rng = Random(f"{SEED} {shard.corpus} {shard.row_length} {shard.number}")
    padding = tokenizer.token_to_id(END_OF_TEXT)
    tokens = np.full((shard.num_rows, shard.row_length), padding, np.uint16)
    weights = np.zeros((shard.num_rows, shard.row_length), np.uint8)
    for row in range(shard.num_rows):
        made = segments(rng, shard.conversation(rng))
        used = 0
        for ids, codes in encode(tokenizer, made):
            end = used + len(ids)
            if end > shard.row_length:
                break
            tokens[row, used:end], weights[row, used:end] = ids, codes
            used = end
    return tokens, weights


def encode(tokenizer: Tokenizer, made: list[list[Piece]]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the token ids of each segment, and the weight code of each token.

    Pieces are tokenized one by one, as at inference, where prompt and answer are separate.
    """
    pieces = [piece for segment in made for piece in segment]
    encodings = iter(tokenizer.encode_batch_fast([piece.text for piece in pieces]))
    for segment in made:
        ids: list[int] = []
        codes: list[int] = []
        for piece in segment:
            new = next(encodings).ids
            ids += new
            codes += [int(piece.weight)] * len(new)
        yield ids, codes
