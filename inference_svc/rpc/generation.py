"""Validates the requests of Generate and Chat, tokenizes their prompts and submits them.

All errors of invalid requests are raised here, before the stream starts.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from corral.inference.v1 import chat_pb2
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.conversation import Conversation, ConversationLimits
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser, make_finder
from inference_svc.chat.reasoning_support import (
    check_thinking,
    ignored_options,
    reasoning_spec,
    token_budget,
)
from inference_svc.chat.templates import ChatTemplates, RenderedPrompt
from inference_svc.chat.tokenization import PromptTokens, TextToTokenize
from inference_svc.chat.tool_turns import pair_results
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.detokenizer import ContentFinder
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.limits.limiter import Admit, Need
from inference_svc.media.model import EncodedMedia
from inference_svc.model_pool.catalog import Catalog, LoadedModel, ModelProcessor, ResolvedModel
from inference_svc.rpc.adapters import resolve_adapters
from inference_svc.rpc.chat_messages import check_counts, to_conversation
from inference_svc.rpc.infill import infill_tokens
from inference_svc.rpc.media_inputs import NO_MEDIA, MediaInputs, media_files
from inference_svc.rpc.output_constraints import (
    chat_output_spec,
    constrained_format,
    text_output_spec,
)
from inference_svc.rpc.prefix_policy import PrefixGroups
from inference_svc.rpc.request_options import (
    MAX_CHOICES,
    Caller,
    Prompt,
    Target,
    resolve_priority,
    to_requests,
)
from inference_svc.rpc.streaming import AcceptedRequest, ChatTurn, TextTurn
from inference_svc.structured_output.compiler import GrammarCompiler
from inference_svc.structured_output.spec import OutputSpec
from inference_svc.usage import UsageKey
from inference_svc.validation import check_range
from svc_kit.errors import MissingField, ModelNotFound
from svc_kit.off_loop import off_loop
from svc_kit.queue_share import QueueEntry


class GenerationService:
    """Prepares generation requests and submits them to engines."""

    def __init__(
        self,
        catalog: Catalog,
        templates: ChatTemplates,
        grammars: GrammarCompiler,
        limits: ConversationLimits,
        groups: PrefixGroups,
        media_inputs: MediaInputs,
        admit: Admit,
    ) -> None:
        self._admit = admit
        self.media_inputs = media_inputs
        self._catalog = catalog
        self._templates = templates
        self._grammars = grammars
        self._limits = limits
        self._groups = groups

    async def generate(
        self, request: pb.GenerateRequest, loaded: LoadedModel, caller: Caller
    ) -> tuple[AcceptedRequest, Sequence[TextTurn]]:
        """Submit a raw continuation. Raises the `DomainError` of the first invalid field."""
        _check_room(request.options, loaded, caller)
        is_truncated = request.HasField("truncate_prompt_tokens")
        has_source = loaded.processor.decoder_start is not None  # which has a limit of its own
        limit = None if is_truncated or has_source else loaded.ready.slot_tokens
        tokens = await self._prompt_tokens(request, loaded.processor, limit)
        if is_truncated:
            tokens = _truncated(tokens, request.truncate_prompt_tokens, loaded.ready.slot_tokens)
        spec = text_output_spec(request.options.constraint)
        prompt = Prompt(tokens, "prompt", decoder_start=loaded.processor.decoder_start)
        accepted = await self._submit(request, prompt, spec, loaded, caller)
        token_ids = request.options.output.token_ids
        turns = [TextTurn(i, token_ids=token_ids) for i in range(len(accepted.requests))]
        return accepted, turns

    async def chat(
        self, request: pb.ChatRequest, loaded: LoadedModel, caller: Caller
    ) -> tuple[AcceptedRequest, Sequence[ChatTurn]]:
        """Submit the next turn of a conversation. Raises like `generate`."""
        _check_room(request.options, loaded, caller)
        conversation, project = await self._next_turn(request), caller.principal.project
        conversation = await self.media_inputs.read(conversation, loaded.media)
        # What the template, the constraint, other options or a limit refuse is not encoded.
        model = loaded.processor
        prompt = await self._templates.render(model.template, conversation)
        if prompt.single_calls:
            conversation = conversation.with_single_calls()
        spec = chat_output_spec(request.options.constraint, conversation, prompt)
        check_thinking(conversation, prompt.thinking, model.name)
        owner = self._groups.owner(project) + request.options.cache.salt
        texts = await model.tokenizer.tokenize_spans(prompt, loaded.ready.slot_tokens)
        check = partial(self._check_before_encoding, request, texts, spec, loaded, caller)
        media = NO_MEDIA
        if loaded.media is not None:
            media = await loaded.media.encode(
                media_files(conversation), owner=owner, project=project, check_request=check
            )
        try:
            tokens, spans = model.tokenizer.join(prompt, texts, media.media)
            tokenized = Prompt(tokens, "messages", spans)
            accepted, turns = await self._chat(
                request, conversation, prompt, tokenized, spec, loaded, caller
            )
        except BaseException:
            media.release()
            raise
        return replace(accepted, media=media), turns

    async def _next_turn(self, request: pb.ChatRequest) -> Conversation:
        """Convert and validate the conversation of a request, with its budget of reasoning."""
        conversation, options = await self.conversation(request.conversation), request.options
        if not options.HasField("thinking_budget_tokens"):
            return conversation
        budget = options.thinking_budget_tokens
        check_range("thinking_budget_tokens", budget, 0, 2**31 - 1)
        template = replace(conversation.options, thinking_budget_tokens=budget)
        return replace(conversation, options=template)

    async def _check_before_encoding(
        self,
        request: pb.ChatRequest,
        texts: Sequence[Sequence[int]],
        spec: OutputSpec | None,
        loaded: LoadedModel,
        caller: Caller,
    ) -> None:
        """Raise what refuses a request with any pictures and sounds, except too long a text."""
        options, project = request.options, caller.principal.project
        await self._constraint(spec, loaded.processor)
        await self._predicted(options, loaded)
        # Each picture or sound has at least one token. `_submit` checks that the whole prompt fits.
        tokens = [0, *chain.from_iterable(texts)]
        shortest = Prompt(tokens[: loaded.ready.slot_tokens - 1], "messages")
        resolved = self._resolve(request.model, loaded, project)
        key = UsageKey(project, caller.principal.key_id, resolved.name)
        (await self._admit(key, Need(len(shortest.tokens)), is_check=True)).release()
        self._validated_requests(options, shortest, loaded, caller, resolved)

    async def _chat(
        self,
        request: pb.ChatRequest,
        conversation: Conversation,
        prompt: RenderedPrompt,
        tokenized: Prompt,
        spec: OutputSpec | None,
        loaded: LoadedModel,
        caller: Caller,
    ) -> tuple[AcceptedRequest, Sequence[ChatTurn]]:
        model = loaded.processor
        if spec is not None:
            turn_format = constrained_format(prompt.turn_format, spec)
            prompt = replace(prompt, turn_format=turn_format)
        accepted = await self._submit(
            request,
            tokenized,
            spec,
            loaded,
            caller,
            # Parsers must see these control tokens.
            visible_tokens=model.vocabulary.control_tokens_in(prompt.turn_format.marker_texts),
            stop_texts=prompt.stop_texts,
            content=content_finder(prompt, conversation, request.options.stopping.stop),
            reasoning=await self._reasoning(conversation, prompt, model),
        )
        inline = request.reasoning_format == chat_pb2.REASONING_FORMAT_INLINE
        turns = [
            ChatTurn(
                i,
                make_parser(prompt, conversation, inline=inline),
                token_ids=request.options.output.token_ids,
                max_calls=None if conversation.tool_choice.parallel else 1,
                stop={*item.stop} - {*item.end_texts},
            )
            for i, item in enumerate(accepted.requests)
        ]
        try:
            for turn, item in zip(turns, accepted.requests, strict=True):
                _replay(item, model, turn)
        except BaseException:
            accepted.admission.release()
            raise
        ignored = (*ignored_options(conversation, prompt.thinking), *accepted.ignored_options)
        return replace(accepted, ignored_options=ignored), turns

    async def _submit(
        self,
        request: pb.GenerateRequest | pb.ChatRequest,
        prompt: Prompt,
        spec: OutputSpec | None,
        loaded: LoadedModel,
        caller: Caller,
        *,
        visible_tokens: frozenset[int] = frozenset(),
        stop_texts: tuple[str, ...] = (),
        content: Callable[[], ContentFinder] | None = None,
        reasoning: ReasoningSpec | None = None,
    ) -> AcceptedRequest:
        """Submit the choices of a request, which end at `stop_texts` too. `content` finds the
        content of the output, in which alone the caller's stop texts count."""
        options, model, project = request.options, loaded.processor, caller.principal.project
        constraint, ignored = await self._constraint(spec, model)
        predicted = await self._predicted(options, loaded)
        name = self._resolve(request.model, loaded, project).name
        key = UsageKey(project, caller.principal.key_id, name)
        admission = await self._admit(key, _estimate_need(options, prompt, loaded))
        try:
            # No await from here on, because an adapter must not be freed before it is used.
            resolved = self._resolve(request.model, loaded, project)
            valid, adapters = self._validated_requests(options, prompt, loaded, caller, resolved)
            requests = [
                replace(
                    item,
                    constraint=constraint,
                    predicted=predicted,
                    visible_tokens=visible_tokens,
                    end_texts=stop_texts,
                    content=content,
                    reasoning=reasoning,
                )
                for item in valid
            ]
            stream, position = loaded.engine.submit(requests, options.label, adapters)
        except BaseException:
            admission.release()
            raise
        sends_ids = options.output.prompt_token_ids
        return AcceptedRequest(
            requests,
            stream,
            position,
            key,
            admission,
            prompt_token_ids=sends_ids,
            ignored_options=ignored,
        )

    def _validated_requests(
        self,
        options: generation.GenerationOptions,
        prompt: Prompt,
        loaded: LoadedModel,
        caller: Caller,
        resolved: ResolvedModel,
    ) -> tuple[Sequence[SequenceRequest], tuple[Adapter, ...]]:
        """Validate options; return the request of each choice, and the adapters they use."""
        model, project = loaded.processor, caller.principal.project
        applied = resolve_adapters(options.adapters, resolved, self._catalog, project)
        target = Target(
            model.name,
            model.vocabulary.size,
            loaded.ready.slot_tokens,
            model.default_sampling,
            applied.stack,
            loaded.digest,
            loaded.ready.source_tokens,
        )
        return to_requests(options, prompt, target, caller, self._groups), applied.adapters

    def _resolve(self, name: str, loaded: LoadedModel, project: str) -> ResolvedModel:
        """Resolve the model name again. Raises `ModelNotFound` if it now names another model than
        at the start of the call."""
        resolved = self._catalog.resolve(name, project)
        if resolved.model.name != loaded.processor.name:
            raise ModelNotFound(model=name)
        return resolved

    async def conversation(self, request: pb.Conversation) -> Conversation:
        """Convert and validate a conversation, in a thread if it is long."""
        check_counts(request, self._limits)
        return await off_loop(len(request.messages), self._converted, request)

    def _converted(self, request: pb.Conversation) -> Conversation:
        conversation = to_conversation(request, allows_templates=self._limits.allows_templates)
        conversation.check(self._limits)
        return pair_results(conversation)

    async def count_media(
        self, conversation: Conversation, loaded: LoadedModel, project: str
    ) -> Sequence[EncodedMedia]:
        """Return the pictures and sounds of a conversation without vectors, to count tokens."""
        if loaded.media is None:
            return ()
        files, owner = media_files(conversation), self._groups.owner(project)
        return await loaded.media.count(files, owner=owner, project=project)

    async def render(
        self,
        conversation: Conversation,
        model: ModelProcessor,
        media: Sequence[EncodedMedia] = (),
    ) -> tuple[RenderedPrompt, PromptTokens]:
        """Render the prompt of a conversation; return it with its tokens. `media` are all its
        pictures and sounds."""
        prompt = await self._templates.render(model.template, conversation)
        return prompt, await model.tokenizer.tokenize_prompt(prompt, media)

    async def _prompt_tokens(
        self, request: pb.GenerateRequest, model: ModelProcessor, max_tokens: int | None
    ) -> Sequence[int]:
        if request.HasField("infill"):
            return await infill_tokens(request, model)
        match request.WhichOneof("prompt"):
            case "token_ids":
                return request.token_ids.ids
            case "text":
                add_special = request.add_special if request.HasField("add_special") else True
                text = TextToTokenize(request.text, add_special, request.parse_special)
                return await model.tokenizer.tokenize(text, max_tokens=max_tokens)
        raise MissingField(field="prompt")

    async def _predicted(
        self, options: generation.GenerationOptions, loaded: LoadedModel
    ) -> "array[int]":
        """Tokenize the predicted output for drafts, truncated to the context. Control tokens are
        plain text."""
        text = options.speculation.prediction
        if not text:
            return array("i")
        tokens = await loaded.processor.tokenizer.tokenize(TextToTokenize(text), field="prediction")
        return array("i", tokens[: loaded.ready.slot_tokens])

    @staticmethod
    async def _reasoning(
        conversation: Conversation, prompt: RenderedPrompt, model: ModelProcessor
    ) -> ReasoningSpec | None:
        spec = reasoning_spec(prompt.turn_format, opens_in_reasoning=prompt.opens_in_reasoning)
        budget = token_budget(conversation)
        if spec is None or budget is None:
            return spec
        texts = [TextToTokenize(each, parse_special=True) for each in prompt.turn_format.closings]
        closings = await model.tokenizer.tokenize_each(texts, field="messages")
        return spec._replace(budget=budget, closings=tuple(map(tuple, closings)))

    async def _constraint(
        self, request: OutputSpec | None, model: ModelProcessor
    ) -> tuple[Constraint | None, tuple[str, ...]]:
        """The constraint, and the fields that it does not enforce."""
        if request is None:
            return None, ()
        grammar, ignored = await self._grammars.compile(request, model.grammar_vocabulary)
        field = request.form.field if request.form is not None else "tools"
        return Constraint(grammar, field), ignored


def _check_room(options: generation.GenerationOptions, loaded: LoadedModel, caller: Caller) -> None:
    """Raise what refuses a request whatever its prompt is, before it costs anything."""
    num_choices = options.num_choices if options.HasField("num_choices") else 1
    check_range("n", num_choices, 1, MAX_CHOICES)
    priority = resolve_priority(options.scheduling.priority, caller.principal)
    loaded.engine.check_room(QueueEntry(caller.principal.project, priority, 0), num_choices)


def _truncated(tokens: Sequence[int], length: int, slot_tokens: int) -> Sequence[int]:
    """The last tokens of a prompt. A length of -1 leaves space for one more token."""
    if length == -1:
        length = slot_tokens - 1
    check_range("truncate_prompt_tokens", length, 1, 2**31 - 1)
    return tokens[-length:]


def _estimate_need(
    options: generation.GenerationOptions, prompt: Prompt, loaded: LoadedModel
) -> Need:
    num_prompt, stopping = len(prompt.tokens), options.stopping
    remaining = max(0, loaded.ready.slot_tokens - num_prompt)
    max_tokens = stopping.max_tokens if stopping.HasField("max_tokens") else remaining
    num_choices = options.num_choices if options.HasField("num_choices") else 1
    return Need(num_prompt, max(0, min(max_tokens, remaining)), max(1, num_choices))


def make_parser(prompt: RenderedPrompt, conversation: Conversation, *, inline: bool) -> TurnParser:
    """Make the parser of the output for a prompt; `inline` leaves reasoning in the content."""
    return TurnParser(
        prompt.turn_format,
        tools=_offered(conversation),
        opens_in_reasoning=prompt.opens_in_reasoning,
        inline_reasoning=inline,
        used_ids={call.id for message in conversation.messages for call in message.tool_calls},
    )


def content_finder(
    prompt: RenderedPrompt, conversation: Conversation, stop: Sequence[str]
) -> Callable[[], ContentFinder] | None:
    """How the engine finds the content of the output, in which alone the stop texts of a request
    count; None if all output is content or there are no stop texts, since it is sent with all
    tools."""
    if not stop:
        return None
    turn_format, tools = prompt.turn_format, _offered(conversation)
    has_others = turn_format.reasoning_markers or turn_format.frame_texts
    if not has_others and not (tools and turn_format.marker_texts):
        return None
    return partial(make_finder, turn_format, tools, prompt.opens_in_reasoning)


def _offered(conversation: Conversation) -> OfferedTools:
    tools = conversation.tools if conversation.offers_tools else ()
    return OfferedTools({tool.name: tool.parameters_json for tool in tools})


def _replay(request: SequenceRequest, model: ModelProcessor, turn: ChatTurn) -> None:
    """Feed the resumed tokens of a choice to its parser."""
    detokenizer = request.new_detokenizer()
    pieces = [
        model.vocabulary.piece(token, request.special_tokens or token in request.visible_tokens)
        for token in request.resumed
    ]
    turn.replay([detokenizer.push(piece) for piece in pieces], pieces)
