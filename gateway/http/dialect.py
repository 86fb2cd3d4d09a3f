"""Which HTTP API a request belongs to, by its path and headers. Errors have that API's form."""

from enum import StrEnum
from typing import Final

from starlette.types import Scope


class Dialect(StrEnum):
    """An HTTP API of another project."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    LLAMA_SERVER = "llama_server"


_PREFIXES: Final = (
    ("/v1/messages", Dialect.ANTHROPIC),
    ("/api", Dialect.OLLAMA),
    *(
        (path, Dialect.LLAMA_SERVER)
        for path in (
            "/apply-template",
            "/completion",
            "/completions",
            "/detokenize",
            "/embedding",
            "/embeddings",
            "/infill",
            "/props",
            "/rerank",
            "/reranking",
            "/slots",
            "/tokenize",
            "/tokenizer_info",
        )
    ),
)
"""A path belongs to a dialect if it is its prefix, or begins with it and a slash."""
ANTHROPIC_VERSION: Final = b"anthropic-version"
"""A header that all clients of Anthropic's API send. It decides where paths are shared, as
/v1/models is."""


def dialect_of(scope: Scope) -> Dialect:
    """The dialect of a request; OpenAI's if nothing else matches."""
    path = scope.get("path", "")
    for prefix, dialect in _PREFIXES:
        if path == prefix or path.startswith(f"{prefix}/"):
            return dialect
    if any(name == ANTHROPIC_VERSION for name, _ in scope.get("headers", ())):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI
