"""What the dialects write of each declared type that is not made from one message."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dialects.anthropic import errors as anthropic_errors
from dialects.llama_server import errors as llama_server_errors
from dialects.ollama import errors as ollama_errors
from dialects.openai import errors as openai_errors
from tests.support.written_openai_objects import OPENAI_OBJECTS
from tools.response_schemas.examples import TEXT
from tools.response_schemas.streams import example_errors

WRITTEN_SHAPES: Final[Mapping[Any, Callable[[], Iterable[Any]]]] = {
    openai_errors.Error: lambda: map(openai_errors.error_body, example_errors()),
    anthropic_errors.AnthropicError: lambda: (
        anthropic_errors.error_body(each, TEXT) for each in example_errors()
    ),
    ollama_errors.OllamaError: lambda: map(ollama_errors.error_body, example_errors()),
    llama_server_errors.LlamaServerError: lambda: map(
        llama_server_errors.error_body, example_errors()
    ),
    **OPENAI_OBJECTS,
}
"""The objects of each type, and the events of each stream."""
