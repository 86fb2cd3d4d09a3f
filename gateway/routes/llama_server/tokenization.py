"""Routes: POST /tokenize, /detokenize and /apply-template, GET /tokenizer_info."""

import functools
from collections.abc import Mapping
from typing import Any

from corral.inference.v1 import inference_service_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.llama_server.objects import TokenizerInfo, tokenizer_info
from dialects.llama_server.tokens import (
    DETOKENIZE_PARAMS,
    PROMPT_TOKENIZE_PARAMS,
    TOKENIZE_PARAMS,
    CountedTokens,
    DetokenizeBody,
    DetokenizedText,
    PromptTokenizeBody,
    RenderedPrompt,
    TokenizeBody,
    TokenList,
    Tokens,
    counted_tokens,
    detokenize_request,
    is_prompt_body,
    parse_detokenize,
    parse_prompt_tokenize,
    parse_tokenize,
    prompt_tokenize_request,
    split_chat,
    text_of_tokens,
    token_answer,
    tokenize_requests,
)
from dialects.openai.chat.chat_request import ChatCompletionBody, chat_request, parse_chat
from dialects.openai.errors import CHAT_PARAMS, openai_names
from dialects.openai.responses.objects import InputTokens
from gateway.context import Context, Inference, JsonObject, Models
from gateway.http.docs import TEXT, json_body, llama_server_operation, operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert
from gateway.rpc import InferenceClient
from svc_kit.errors import InvalidField

router = APIRouter()


@router.post(
    "/tokenize",
    **llama_server_operation(
        "Tokenize (llama-server, vLLM)", Tokens, json_body(TokenizeBody, PromptTokenizeBody)
    ),
)
async def tokenize(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """The tokens of a text: in llama-server's form with `content`, in vLLM's with `prompt` or
    `messages`."""
    tokenized = _tokenize_prompt if is_prompt_body(fields) else _tokenize_content
    answer = functools.partial(tokenized, inference, fields)
    return context.composed_response(answer, is_queued=False)


async def _tokenize_content(inference: InferenceClient, fields: Mapping[str, Any]) -> TokenList:
    body = await convert(parse_tokenize, fields)
    with openai_names(TOKENIZE_PARAMS):
        requests = tokenize_requests(body)
        reply = inference_service_pb2.TokenizeResponse
        requests.reverse()
        replies = [await inference.call(requests.pop(), reply) for _ in range(len(requests))]
    return await convert(token_answer, body, replies)


async def _tokenize_prompt(inference: InferenceClient, fields: Mapping[str, Any]) -> CountedTokens:
    if "messages" in fields:
        chat, own = split_chat(fields)
        body = parse_prompt_tokenize(own)
        if body.return_token_strs:
            problem = "it is only allowed with 'prompt'"
            raise InvalidField(field="return_token_strs", problem=problem)
        tokens = (await _render(inference, chat)).token_ids
        return counted_tokens(tokens, None, await inference.get_model(str(chat["model"])))
    body = await convert(parse_prompt_tokenize, fields)
    with openai_names(PROMPT_TOKENIZE_PARAMS):
        reply = await inference.call(
            prompt_tokenize_request(body), inference_service_pb2.TokenizeResponse
        )
    pieces = reply.pieces if body.return_token_strs else None
    model = await inference.get_model(body.model or "")
    return await convert(counted_tokens, reply.token_ids, pieces, model)


@router.post(
    "/detokenize",
    **llama_server_operation(
        "Detokenize (llama-server, vLLM)", DetokenizedText, json_body(DetokenizeBody)
    ),
)
async def detokenize(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """The text of tokens, with control tokens."""
    body = await convert(parse_detokenize, fields)
    request = await convert(detokenize_request, body)
    start = functools.partial(inference.unary, request)
    return context.reply_response(start, text_of_tokens, DETOKENIZE_PARAMS)


@router.post(
    "/apply-template",
    **llama_server_operation(
        "Apply the chat template (llama-server)", RenderedPrompt, json_body(ChatCompletionBody)
    ),
)
async def apply_template(inference: Inference, fields: JsonObject, context: Context) -> Response:
    """The prompt of a chat completion, as the model gets it."""

    async def render() -> RenderedPrompt:
        return {"prompt": (await _render(inference, {"model": ""} | fields)).text}

    return context.composed_response(render, is_queued=False)


@router.get(
    "/tokenizer_info",
    **llama_server_operation("The tokenizer (vLLM)", TokenizerInfo, query={"model": TEXT}),
)
async def show_tokenizer(inference: Models, request: Request) -> Response:
    """The begin and end token and the chat template of the model in the query, or of the first."""
    model = await inference.get_model(request.query_params.get("model", ""))
    return json_response(tokenizer_info(model))


@router.post(
    "/v1/chat/completions/input_tokens",
    **operation(
        "Count the tokens of a chat completion",
        InputTokens,
        json_body(ChatCompletionBody),
    ),
)
async def count_input_tokens(
    inference: Inference, fields: JsonObject, context: Context
) -> Response:
    """Count the prompt tokens of a chat completion without generating it."""
    chat = await convert(chat_request, await convert(parse_chat, fields))
    proto = inference_service_pb2.CountTokensRequest(
        model=chat.model, conversation=chat.conversation
    )
    start = functools.partial(inference.unary, proto)
    return context.reply_response(start, _counted_input, CHAT_PARAMS)


async def _render(
    inference: InferenceClient, fields: Mapping[str, Any]
) -> inference_service_pb2.RenderChatResponse:
    """The prompt of a body of chat completions."""
    chat = await convert(chat_request, await convert(parse_chat, fields))
    proto = inference_service_pb2.RenderChatRequest(
        model=chat.model, conversation=chat.conversation
    )
    with openai_names(CHAT_PARAMS):
        return await inference.call(proto, inference_service_pb2.RenderChatResponse)


def _counted_input(reply: inference_service_pb2.CountTokensResponse) -> InputTokens:
    return {"object": "response.input_tokens", "input_tokens": reply.prompt_tokens}
