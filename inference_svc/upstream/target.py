"""The configuration of one upstream, and what of its vocabulary the upstream needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class UpstreamVocabulary(Protocol):
    """The vocabulary of the model that the engine serves, by our own tokenizer."""

    size: int

    @property
    def end_tokens(self) -> frozenset[int]:
        """All tokens that end a generation."""

    @property
    def control_texts(self) -> tuple[str, ...]:
        """The texts that `parse_special` turns into control tokens."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens by their texts that are found in every text, but are no control tokens."""

    def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, field: str = "prompt"
    ) -> list[int]:
        """Turn a text into token ids."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; those of control tokens are empty unless `special`."""


@dataclass(frozen=True, slots=True)
class UpstreamTarget:
    """One name and the engines behind it, which serve the same model.

    `urls` are "http(s)://host[:port][/prefix]"; `kind` is "auto", "vllm", "sglang",
    "llama_server" or "openai". `model` is the engine's name of the model; empty: its only one.
    `adapters` are the names of those that requests may use, as the engine lists them; those that it
    lacks it is to load from `adapter_folder`, if that is set.
    `key_file` has a key for `Authorization: Bearer`, and is read at each connection. `concurrency`,
    of each URL, and `context_tokens` are the engine's if None; `batch_ahead` are the requests of
    batches beyond it, None for as many again. Times are in seconds: until
    connected, until the first token, and between two parts of an answer. `ca_file` verifies engines
    instead of the system's authorities; `certificate_file` and `certificate_key_file` are the
    client's. `default_path` is that of URLs that have none. In text mode it generates or `embeds`.
    """

    name: str
    urls: Sequence[str]
    kind: str = "auto"
    model: str = ""
    adapters: tuple[str, ...] = ()
    adapter_folder: str = ""
    key_file: Path | None = None
    headers: tuple[tuple[str, str], ...] = ()
    concurrency: int | None = None
    batch_ahead: int | None = None
    context_tokens: int | None = None
    connect_timeout_s: float = 5.0
    first_token_timeout_s: float = 600.0
    token_timeout_s: float = 60.0
    ca_file: Path | None = None
    certificate_file: Path | None = None
    certificate_key_file: Path | None = None
    default_path: str = ""
    embeds: bool = False
