"""What a model is asked: its tokens, its template and its constraints."""

from svc_kit.errors.kinds import InvalidArgument


class ContextLengthExceeded(InvalidArgument):
    """This model's maximum context length is {context_tokens} tokens. However, your messages
    resulted in
    {prompt_tokens} tokens. Please reduce the length of the messages."""

    reason = "CONTEXT_LENGTH_EXCEEDED"
    field: str
    prompt_tokens: int
    context_tokens: int


class TokenOutOfVocabulary(InvalidArgument):
    """Invalid '{field}': the model has no token {token}, its vocabulary has {vocabulary_size}."""

    reason = "TOKEN_OUT_OF_VOCABULARY"
    field: str
    token: int
    vocabulary_size: int


class TemplateFailed(InvalidArgument):
    """The model's chat template cannot render these messages: {problem}"""

    reason = "TEMPLATE_FAILED"
    problem: str


class GrammarInvalid(InvalidArgument):
    """The grammar in '{field}' cannot be used: {problem}"""

    reason = "GRAMMAR_INVALID"
    field: str
    problem: str


class SchemaInvalid(InvalidArgument):
    """The JSON Schema in '{field}' cannot be used, at {pointer}: {problem}"""

    reason = "SCHEMA_INVALID"
    field: str
    pointer: str
    """A JSON Pointer (RFC 6901) into the schema."""
    problem: str
