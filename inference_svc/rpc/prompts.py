"""What is generated from: the conversations of Chat, and the prompts of Generate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.conversation import (
    Conversation,
    ConversationLimits,
    MediaPart,
    Message,
    Part,
    RefusalPart,
    TemplateOptions,
    TextPart,
)
from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.chat.tool_turns import pair_results
from inference_svc.chat.vendor_lines import without_vendor_lines
from inference_svc.model_pool.catalog import ModelProcessor
from inference_svc.rpc.call import Call
from inference_svc.validation import check_count, check_range
from svc_kit.errors import InvalidField, MissingField, ModelCannot, UnsupportedField
from svc_kit.off_loop import off_loop
from svc_kit.rpc.message_mapper import MessageMapper

_REPOSITORY: Final = "project\n"
_SNIPPET: Final = "\n\n--- snippet ---\n\n"
"""What precedes a file if the model has no token for it, as in llama-server."""
_MESSAGE: Final = MessageMapper(
    Message, chat_pb2.ChatMessage, only_domain=["parts", "position"], only_message=["parts"]
)
_MEDIA: Final = MessageMapper(MediaPart, chat_pb2.Media, only_domain=["kind", "path"])
_CONVERSATION: Final = MessageMapper(
    Conversation,
    pb.Conversation,
    renamed={"options": "template"},
    uses=[
        MessageMapper(
            TemplateOptions, chat_pb2.TemplateOptions, only_domain=["thinking_budget_tokens"]
        )
    ],
    only_domain=["messages"],
    only_message=["messages"],
)


async def read_next_turn(request: pb.ChatRequest, limits: ConversationLimits) -> Conversation:
    """Convert the conversation of a request like `read_conversation`, with its budget of
    reasoning."""
    conversation, options = await read_conversation(request.conversation, limits), request.options
    if not options.HasField("thinking_budget_tokens"):
        return conversation
    budget = options.thinking_budget_tokens
    template = replace(conversation.options, thinking_budget_tokens=budget)
    return replace(conversation, options=template)


async def read_conversation(request: pb.Conversation, limits: ConversationLimits) -> Conversation:
    """Convert a conversation, in a thread if it is long, without lines that are not for the model.
    Raises the error of what is invalid."""

    def convert(request: pb.Conversation) -> Conversation:
        conversation = to_conversation(request, allows_templates=limits.allows_templates)
        conversation.check(limits)
        return without_vendor_lines(pair_results(conversation), limits.vendor_lines)

    check_counts(request, limits)
    return await off_loop(len(request.messages), convert, request)


def to_conversation(conversation: pb.Conversation, *, allows_templates: bool) -> Conversation:
    """Convert the conversation of a request. The caller must call `Conversation.check`.

    Raises `MissingField` for a role or a part, `InvalidField` for an unknown role or mode, and
    `UnsupportedField` for a chat template if the operator does not allow them.
    """
    if conversation.template.template and not allows_templates:
        raise UnsupportedField(field="chat_template")
    messages = tuple(_message(i, message) for i, message in enumerate(conversation.messages))
    return _CONVERSATION.from_message(conversation, messages=messages)


def check_counts(conversation: pb.Conversation, limits: ConversationLimits) -> None:
    """Raise `TooLong` for too many messages, or parts and calls of a message, before they are
    converted."""
    check_count("messages", conversation.messages, limits.max_messages)
    for index, message in enumerate(conversation.messages):
        check_count(f"messages[{index}].content", message.parts, limits.max_messages)
        check_count(f"messages[{index}].tool_calls", message.tool_calls, limits.max_messages)


def _message(index: int, message: chat_pb2.ChatMessage) -> Message:
    path = f"messages[{index}]"
    parts = tuple(_part(f"{path}.content[{i}]", part) for i, part in enumerate(message.parts))
    return _MESSAGE.from_message(message, path, parts=parts, position=index)


def _part(field: str, part: chat_pb2.ContentPart) -> Part:
    match part.WhichOneof("part"):
        case "text":
            return TextPart(part.text)
        case "refusal":
            return RefusalPart(part.refusal)
        case None:
            raise MissingField(field=field)
        case kind:
            return _MEDIA.from_message(getattr(part, kind), kind=kind)


async def prompt_tokens(call: Call[pb.GenerateRequest]) -> Sequence[int]:
    """The tokens of a prompt; with `truncate_prompt_tokens` its last ones, -1 leaving space for one
    more token. Raises the `DomainError` of an invalid prompt."""
    request = call.request
    if not request.HasField("truncate_prompt_tokens"):
        has_source = call.model.decoder_start is not None  # which has a limit of its own
        return await _tokens(request, call.model, None if has_source else call.slot_tokens)
    tokens, length = await _tokens(request, call.model), request.truncate_prompt_tokens
    length = call.slot_tokens - 1 if length == -1 else length
    check_range("truncate_prompt_tokens", length, 1, 2**31 - 1)
    return tokens[-length:]


async def _tokens(
    request: pb.GenerateRequest, model: ModelProcessor, max_tokens: int | None = None
) -> Sequence[int]:
    if request.HasField("infill"):
        return await _infill_tokens(request, model)
    match request.WhichOneof("prompt"):
        case "token_ids":
            return request.token_ids.ids
        case "text":
            add_special = request.add_special if request.HasField("add_special") else True
            text = TextToTokenize(request.text, add_special, request.parse_special)
            return await model.tokenizer.tokenize(text, max_tokens=max_tokens)
    raise MissingField(field="prompt")


async def _infill_tokens(request: pb.GenerateRequest, model: ModelProcessor) -> list[int]:
    """The tokens of files, prefix and suffix, in the order in which models are trained.

    Raises InvalidField if the prompt is not a text, and ModelCannot if the model has no tokens for
    it. Control tokens in the texts are plain text.
    """
    vocabulary, infill = model.vocabulary, request.infill
    tokens = vocabulary.infill_tokens
    if tokens is None:
        model_class = model.file.model_class.value
        raise ModelCannot(
            model=model.name, model_class=model_class, operation="infill", field="infill.suffix"
        )
    if request.WhichOneof("prompt") == "token_ids":
        raise InvalidField(field="token_ids", problem="it cannot be combined with a suffix")
    has_names = tokens.separator is not None
    files = [
        f"{each.name}\n{each.text}" if has_names else _SNIPPET + each.text for each in infill.files
    ]
    prefix, suffix, repository, *bodies = await model.tokenizer.tokenize_each(
        [TextToTokenize(text) for text in (request.text, infill.suffix, _REPOSITORY, *files)],
        field="prompt",
    )
    head: list[int] = []
    if infill.files and tokens.repository is not None:
        head += [tokens.repository, *repository]
    for file in bodies:
        head += file if tokens.separator is None else [tokens.separator, *file]
    begin = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
    gap = [tokens.prefix, *prefix, tokens.suffix, *suffix, tokens.middle]
    return [*begin, *head, *gap]
