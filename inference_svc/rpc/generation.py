"""Validates the requests of Generate and Chat, tokenizes their prompts and submits them.

All errors of invalid requests are raised here, before the stream starts.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from corral.inference.v1 import chat_pb2
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.conversation import Conversation, ConversationLimits
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.templates import ChatTemplates, RenderedPrompt
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.requests import Submission
from inference_svc.model_pool.catalog import Catalog, LoadedModel, ModelProcessor, ResolvedModel
from inference_svc.rpc.adapters import AppliedAdapters, resolve_adapters
from inference_svc.rpc.chat_messages import to_conversation
from inference_svc.rpc.output_constraints import (
    chat_output_spec,
    constrained_format,
    text_output_spec,
)
from inference_svc.rpc.prefix_policy import PrefixGroups
from inference_svc.rpc.request_options import Prompt, Target, to_requests
from inference_svc.rpc.streaming import AcceptedRequest, ChatTurn, TextTurn
from inference_svc.structured_output.compiler import GrammarCompiler
from inference_svc.structured_output.spec import OutputSpec
from svc_kit.auth.principal import Principal
from svc_kit.errors import MissingField, ModelNotFound


@dataclass(frozen=True, slots=True)
class Caller:
    """Principal, request id and deadline (monotonic clock) of a call."""

    principal: Principal
    request_id: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Limits on the texts of a request."""

    prompt_bytes: int
    conversation: ConversationLimits
    allows_templates: bool


class GenerationService:
    """Prepares generation requests and submits them to engines."""

    def __init__(
        self,
        catalog: Catalog,
        templates: ChatTemplates,
        grammars: GrammarCompiler,
        limits: TextLimits,
        groups: PrefixGroups,
    ) -> None:
        self._catalog = catalog
        self._templates = templates
        self._grammars = grammars
        self._limits = limits
        self._groups = groups

    async def generate(
        self, request: pb.GenerateRequest, loaded: LoadedModel, caller: Caller
    ) -> tuple[AcceptedRequest, Sequence[TextTurn]]:
        """Submit a raw continuation. Raises the `DomainError` of the first invalid field."""
        model, options = loaded.processor, request.options
        tokens = await self._prompt_tokens(request, model)
        constraint = await self._constraint(text_output_spec(options.constraint), model)
        predicted = await self._predicted(options, loaded)
        # No await from here on, because an adapter must not be freed before it is used.
        project = caller.principal.project
        resolved = self._resolve(request.model, loaded, project)
        applied = resolve_adapters(options.adapters, resolved, self._catalog, project)
        requests = to_requests(
            options,
            Prompt(tokens, "prompt"),
            _target(loaded, applied),
            caller.principal,
            caller.deadline,
            self._groups,
        )
        requests = [replace(item, constraint=constraint, predicted=predicted) for item in requests]
        accepted = self._admit(requests, options, loaded, resolved.name, applied, caller)
        turns = [TextTurn(i, token_ids=options.output.token_ids) for i in range(len(requests))]
        return accepted, turns

    async def chat(
        self, request: pb.ChatRequest, loaded: LoadedModel, caller: Caller
    ) -> tuple[AcceptedRequest, Sequence[ChatTurn]]:
        """Submit the next turn of a conversation. Raises like `generate`."""
        model = loaded.processor
        conversation = self.conversation(request.conversation)
        prompt, tokens = await self.render(conversation, model)
        spec = chat_output_spec(request.options.constraint, conversation, prompt)
        if spec is not None:
            turn_format = constrained_format(prompt.turn_format, spec)
            prompt = replace(prompt, turn_format=turn_format)
        constraint = await self._constraint(spec, model)
        predicted = await self._predicted(request.options, loaded)
        project = caller.principal.project
        resolved = self._resolve(
            request.model, loaded, project
        )  # no await from here on, as in `generate`
        applied = resolve_adapters(request.options.adapters, resolved, self._catalog, project)
        requests = to_requests(
            request.options,
            Prompt(tokens, "messages"),
            _target(loaded, applied),
            caller.principal,
            caller.deadline,
            self._groups,
        )
        visible = model.visible_tokens(prompt.turn_format.marker_texts)
        requests = [
            replace(
                item,
                constraint=constraint,
                predicted=predicted,
                visible_tokens=visible,
                stop=(*item.stop, *prompt.stop_texts),
            )
            for item in requests
        ]
        accepted = self._admit(requests, request.options, loaded, resolved.name, applied, caller)
        inline = request.reasoning_format == chat_pb2.REASONING_FORMAT_INLINE
        turns = [
            ChatTurn(
                i,
                make_parser(prompt, conversation, inline=inline),
                token_ids=request.options.output.token_ids,
                max_calls=None if conversation.tool_choice.parallel else 1,
            )
            for i in range(len(requests))
        ]
        for turn, item in zip(turns, requests, strict=True):
            _replay(item, model, turn)
        return accepted, turns

    def _resolve(self, name: str, loaded: LoadedModel, project: str) -> ResolvedModel:
        """Resolve the model name again. Raises `ModelNotFound` if it now names another model than
        at the start of the call."""
        resolved = self._catalog.resolve(name, project)
        if resolved.model.name != loaded.processor.name:
            raise ModelNotFound(model=name)
        return resolved

    def conversation(self, request: pb.Conversation) -> Conversation:
        """Convert and validate a conversation."""
        conversation = to_conversation(request, allows_templates=self._limits.allows_templates)
        conversation.check(self._limits.conversation)
        return conversation

    async def render(
        self, conversation: Conversation, model: ModelProcessor
    ) -> tuple[RenderedPrompt, list[int]]:
        """Render the prompt of a conversation; return it with its tokens."""
        prompt = await self._templates.render(model.template, conversation)
        tokens = await model.tokenizer.tokenize_prompt(
            prompt, limit_bytes=self._limits.prompt_bytes, field="messages"
        )
        return prompt, tokens

    async def tokenize(
        self,
        text: str,
        model: ModelProcessor,
        *,
        add_special: bool,
        parse_special: bool,
        field: str,
    ) -> list[int]:
        """Tokenize a text within the limits."""
        return await model.tokenizer.tokenize(
            text,
            add_special=add_special,
            parse_special=parse_special,
            limit_bytes=self._limits.prompt_bytes,
            field=field,
        )

    async def _prompt_tokens(
        self, request: pb.GenerateRequest, model: ModelProcessor
    ) -> Sequence[int]:
        match request.WhichOneof("prompt"):
            case "token_ids":
                return request.token_ids.ids
            case "text":
                add_special = request.add_special if request.HasField("add_special") else True
                return await self.tokenize(
                    request.text,
                    model,
                    add_special=add_special,
                    parse_special=request.parse_special,
                    field="prompt",
                )
        raise MissingField(field="prompt")

    async def _predicted(
        self, options: generation.GenerationOptions, loaded: LoadedModel
    ) -> "array[int]":
        """Tokenize the predicted output for drafts, truncated to the context. Control tokens are
        plain text."""
        text = options.speculation.prediction
        if not text:
            return array("i")
        tokens = await self.tokenize(
            text, loaded.processor, add_special=False, parse_special=False, field="prediction"
        )
        return array("i", tokens[: loaded.ready.slot_tokens])

    async def _constraint(
        self, request: OutputSpec | None, model: ModelProcessor
    ) -> Constraint | None:
        if request is None:
            return None
        grammar = await self._grammars.compile(request, model.grammar_vocabulary)
        return Constraint(grammar, request.form.field if request.form is not None else "tools")

    def _admit(
        self,
        requests: Sequence[SequenceRequest],
        options: generation.GenerationOptions,
        loaded: LoadedModel,
        name: str,
        applied: AppliedAdapters,
        caller: Caller,
    ) -> AcceptedRequest:
        project = caller.principal.project
        submission = Submission(caller.request_id, project, options.label, applied.adapters)
        stream, position = loaded.engine.submit(requests, submission)
        return AcceptedRequest(requests, stream, position, name, project)


def make_parser(prompt: RenderedPrompt, conversation: Conversation, *, inline: bool) -> TurnParser:
    """Make the parser of the output for a prompt; `inline` leaves reasoning in the content."""
    tools = conversation.tools if conversation.offers_tools else ()
    return TurnParser(
        prompt.turn_format,
        tools=OfferedTools({tool.name: tool.parameters_json for tool in tools}),
        opens_in_reasoning=prompt.opens_in_reasoning,
        inline_reasoning=inline,
        used_ids={call.id for message in conversation.messages for call in message.tool_calls},
    )


def _replay(request: SequenceRequest, model: ModelProcessor, turn: ChatTurn) -> None:
    """Feed the resumed tokens of a choice to its parser."""
    detokenizer = Detokenizer(request.stop, include_stop=request.include_stop)
    texts = []
    for token in request.resumed:
        special = request.special_tokens or token in request.visible_tokens
        texts.append(detokenizer.push(model.vocabulary.piece(token, special)))
    turn.replay(texts)


def _target(loaded: LoadedModel, applied: AppliedAdapters) -> Target:
    model = loaded.processor
    return Target(
        model.name,
        model.vocabulary.size,
        loaded.ready.slot_tokens,
        model.default_sampling,
        applied.stack,
        loaded.digest,
    )
