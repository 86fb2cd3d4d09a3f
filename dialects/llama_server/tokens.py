"""Bodies and answers of /tokenize and /detokenize, in llama-server's form and in vLLM's.

The two differ in whether special tokens are added unless the body says so.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import orjson
from corral.inference.v1 import inference_service_pb2, model_pb2
from pydantic import Field, Tag
from typing_extensions import TypeAliasType, TypedDict

from dialects.shared.fields import BY_KIND, MAX_TOKENS, TokenId, WireModel, validate
from dialects.shared.wire import From, writer
from svc_kit.errors import MissingField

Json = dict[str, Any]
MAX_PARTS: Final = 1024
_NUMBERS_OF_PART: Final = 4096
TOKENIZE_PARAMS: Final = {"text": "content", "token_ids": "content"}
PROMPT_TOKENIZE_PARAMS: Final = {"text": "prompt", "conversation": "messages"}
DETOKENIZE_PARAMS: Final = {"token_ids": "tokens"}
ContentPart = Annotated[Annotated[str, Tag("~string")] | Annotated[TokenId, Tag("~other")], BY_KIND]
Content = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[ContentPart], Field(max_length=MAX_TOKENS), Tag("~array")],
    BY_KIND,
]


class TokenizeBody(WireModel):
    """llama-server's request for the tokens of a text."""

    model: str | None = Field(None, description="Default: the server's first model.")
    content: Content | None = Field(None, description="A text, or a list of texts and token ids.")
    add_special: bool | None = Field(None, description="Add the begin token. Default: false.")
    parse_special: bool | None = Field(None, description="Parse control tokens. Default: true.")
    with_pieces: bool | None = Field(None, description="Return the tokens' texts too.")

    @property
    def texts(self) -> list[str]:
        parts = [self.content] if isinstance(self.content, str) else self.content or ()
        return [part for part in parts if isinstance(part, str)]


class PromptTokenizeBody(WireModel):
    """vLLM's request for the tokens of a prompt. With `messages` instead of a prompt, the other
    fields are those of chat completions."""

    model: str | None = Field(None, description="Default: the server's first model.")
    prompt: str | None = Field(None, description="The text.")
    add_special_tokens: bool | None = Field(None, description="Add the begin token. Default: true.")
    return_token_strs: bool | None = Field(None, description="Return the tokens' texts too.")


class DetokenizeBody(WireModel):
    model: str | None = Field(None, description="Default: the server's first model.")
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)] | None = None


def is_prompt_body(fields: Mapping[str, Any]) -> bool:
    """Whether a body is vLLM's."""
    return "content" not in fields and ("prompt" in fields or "messages" in fields)


def split_chat(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], Json]:
    """Split a body with messages into the fields of a chat and those of `PromptTokenizeBody`."""
    own = ("add_special_tokens", "return_token_strs")
    chat = {name: value for name, value in fields.items() if name not in own}
    return {"model": ""} | chat, {name: fields[name] for name in own if name in fields}


def parse_tokenize(fields: Mapping[str, Any]) -> TokenizeBody:
    """Validate llama-server's body. Raises DomainErrors."""
    return validate(TokenizeBody, fields)


def parse_prompt_tokenize(fields: Mapping[str, Any]) -> PromptTokenizeBody:
    """Validate vLLM's body. Raises DomainErrors."""
    return validate(PromptTokenizeBody, fields)


def parse_detokenize(fields: Mapping[str, Any]) -> DetokenizeBody:
    """Validate a body. Raises DomainErrors."""
    body = validate(DetokenizeBody, fields)
    if body.tokens is None:
        raise MissingField(field="tokens")
    return body


def tokenize_requests(body: TokenizeBody) -> list[inference_service_pb2.TokenizeRequest]:
    """A request for each text of the content; only the first text gets a begin token."""
    return [
        inference_service_pb2.TokenizeRequest(
            model=body.model or "",
            text=text,
            add_special=bool(body.add_special) and index == 0,
            parse_special=body.parse_special is not False,
            pieces=bool(body.with_pieces),
        )
        for index, text in enumerate(body.texts)
    ]


def prompt_tokenize_request(body: PromptTokenizeBody) -> inference_service_pb2.TokenizeRequest:
    """Convert vLLM's body."""
    return inference_service_pb2.TokenizeRequest(
        model=body.model or "",
        text=body.prompt or "",
        add_special=body.add_special_tokens is not False,
        parse_special=True,
        pieces=bool(body.return_token_strs),
    )


def detokenize_request(body: DetokenizeBody) -> inference_service_pb2.DetokenizeRequest:
    return inference_service_pb2.DetokenizeRequest(
        model=body.model or "", token_ids=body.tokens, special_tokens=True
    )


class TokenPiece(TypedDict):
    """A token as text, or as bytes if it is no text of its own."""

    id: int
    piece: str | list[int]


class TokenList(TypedDict):
    """llama-server's answer of /tokenize."""

    tokens: list[int | TokenPiece]


class CountedTokens(TypedDict):
    """vLLM's answer of /tokenize, with the size of the model's context."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(TypedDict):
    """The text of tokens, for clients of both servers."""

    content: Annotated[str, From("text")]
    prompt: Annotated[str, From("text")]


class RenderedPrompt(TypedDict):
    """The answer of /apply-template."""

    prompt: str


Tokens = TypeAliasType("Tokens", TokenList | CountedTokens)
text_of_tokens = writer(inference_service_pb2.DetokenizeResponse, DetokenizedText)


def token_answer(
    body: TokenizeBody, replies: Sequence[inference_service_pb2.TokenizeResponse]
) -> TokenList:
    """llama-server's answer. Many tokens are JSON already: Python's objects take 36 bytes each."""
    if body.with_pieces or not isinstance(body.content, str):
        return token_list(body, replies)
    return {"tokens": json_numbers(replies[0].token_ids)}


def json_numbers(numbers: Sequence[int]) -> Any:
    """The JSON of a list of numbers, made in parts, as an orjson.Fragment."""
    starts = range(0, len(numbers), _NUMBERS_OF_PART)
    parts = [b"["]
    for at in starts:
        parts += orjson.dumps(list(numbers[at : at + _NUMBERS_OF_PART]))[1:-1], b","
    parts[max(len(parts) - 1, 1) :] = [b"]"]
    return orjson.Fragment(b"".join(parts))


def token_list(
    body: TokenizeBody, replies: Sequence[inference_service_pb2.TokenizeResponse]
) -> TokenList:
    """llama-server's answer. Token ids of the content have no pieces."""
    tokens: list[int | TokenPiece] = []
    texts = iter(replies)
    parts = [body.content] if isinstance(body.content, str) else body.content or ()
    for part in parts:
        if isinstance(part, int):
            tokens.append({"id": part, "piece": ""} if body.with_pieces else part)
            continue
        reply = next(texts)
        if body.with_pieces:
            pairs = zip(reply.token_ids, reply.pieces, strict=True)
            tokens += [{"id": token, "piece": _piece(piece)} for token, piece in pairs]
        else:
            tokens += reply.token_ids
    return {"tokens": tokens}


def counted_tokens(
    tokens: Sequence[int], pieces: Sequence[bytes] | None, model: model_pb2.Model
) -> CountedTokens:
    """vLLM's answer; `pieces` are the tokens' bytes, None if they are not wanted."""
    texts = None if pieces is None else [piece.decode(errors="replace") for piece in pieces]
    return {
        "count": len(tokens),
        "max_model_len": model.resolved_limits.context_tokens or model.trained_context_tokens,
        "tokens": json_numbers(tokens),
        "token_strs": texts,
    }


def _piece(piece: bytes) -> str | list[int]:
    """A token as text, or as a list of bytes if it is no text of its own."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
