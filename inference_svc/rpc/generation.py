"""The way of a request of Generate or Chat to the queue of its engine.

`GenerationService.chat` is the way of most; what refuses a request does so here, before the stream
starts. `prompts.py` converts what is generated from, `request_options.py` the options, and
`chat_turn.py` and `streaming.py` the output.
"""

from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.conversation import Conversation, ConversationLimits
from inference_svc.chat.divergence_text import ConversationText, PromptText
from inference_svc.chat.reasoning_support import check_thinking, ignored_options
from inference_svc.chat.templates import ChatTemplates, RenderedPrompt
from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.engine.constraint import Constraint
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.limits.limiter import Admit, Need
from inference_svc.media.model import EncodedMedia
from inference_svc.model_pool.catalog import (
    ModelProcessor,
    ResolvedModel,
    TextProcessor,
    with_tokens,
)
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.metadata import ModelFile
from inference_svc.rpc.adapters import resolve_adapters
from inference_svc.rpc.call import AnyCall, Call, Caller, RequestT
from inference_svc.rpc.chat_turn import (
    MessageTurn,
    chat_turns,
    content_finder,
    find_reasoning,
)
from inference_svc.rpc.media_inputs import MediaInputs, has_encoded, media_files
from inference_svc.rpc.output_constraints import (
    chat_output_spec,
    constrained_format,
    text_output_spec,
)
from inference_svc.rpc.prefix_policy import PrefixGroups
from inference_svc.rpc.prompts import prompt_tokens, read_conversation, read_next_turn
from inference_svc.rpc.request_options import (
    Prompt,
    ignored_in_text_mode,
    text_need,
    text_requests,
    to_requests,
)
from inference_svc.rpc.streaming import AcceptedRequest, TextTurn, Turn
from inference_svc.sessions import SessionKey
from inference_svc.structured_output.compiler import GrammarCompiler
from inference_svc.structured_output.spec import OutputSpec
from inference_svc.usage import UsageKey
from svc_kit.auth.principal import current_principal
from svc_kit.errors import InvalidField, ModelNotFound, ReplicaFull
from svc_kit.queue_share import QueueEntry


class _Checked(NamedTuple):
    """A request that nothing refuses any more; to be queued before the next await, because its
    adapters may be freed then."""

    requests: Sequence[SequenceRequest]
    adapters: tuple[Adapter, ...]
    usage_key: UsageKey
    ignored_options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GenerationService:
    """Prepares generation requests and submits them to engines."""

    pool: ModelPool
    templates: ChatTemplates
    grammars: GrammarCompiler
    limits: ConversationLimits
    groups: PrefixGroups
    media_inputs: MediaInputs
    admit: Admit
    archives_stateless: bool = False

    @asynccontextmanager
    async def call(
        self, request: RequestT, check: Callable[[ModelFile], None]
    ) -> AsyncIterator[Call[RequestT]]:
        """Begin a call, for which `check` accepts the model; what it holds is released at the end.
        Raises `ModelNotFound`, and like `ModelPool.use`."""
        caller = Caller.current()
        project = caller.principal.project
        entry = self.pool.catalog.resolve(request.model, project).model
        async with self.pool.use(entry, check) as loaded:
            owner = self.groups.owner(project)
            with closing(Call(request, loaded, caller, owner, self.archives_stateless)) as call:
                yield call

    async def generate(
        self, call: Call[pb.GenerateRequest]
    ) -> tuple[AcceptedRequest, Sequence[TextTurn]]:
        """Submit a raw continuation. Raises the `DomainError` of the first invalid field."""
        _check_room(call)
        if any(each.held_logprobs for each in call.options.resume):
            raise InvalidField(field="resume.held_logprobs", problem="only chats hold any back")
        tokens = await prompt_tokens(call)
        prompt = Prompt(tokens, "prompt", decoder_start=call.model.decoder_start)
        checked = await self._check(call, prompt, text_output_spec(call.options.constraint))
        ids = call.options.output.token_ids
        turns = [TextTurn(i, token_ids=ids) for i in range(len(checked.requests))]
        return _submit(call, checked, PromptText(call.model.vocabulary)), turns

    async def chat(
        self, call: Call[pb.ChatRequest]
    ) -> tuple[AcceptedRequest, Sequence[Turn[pb.ChatResponse]]]:
        """Submit the next turn of a conversation. Raises like `generate`."""
        _check_room(call)
        if isinstance(call.loaded.opened, TextProcessor):
            return await self._chat_in_text_mode(call, call.loaded.opened)
        model, media = call.model, call.loaded.media
        conversation = await read_next_turn(call.request, self.limits)
        conversation = await self.media_inputs.read(conversation, media)
        prompt = await self.templates.render(model.template, conversation)
        if prompt.single_calls:
            conversation = conversation.with_single_calls()
        spec = chat_output_spec(call.options.constraint, conversation, prompt)
        check_thinking(conversation, prompt.thinking, model.name)
        texts = await model.tokenizer.tokenize_spans(prompt, call.slot_tokens)
        if media is not None:
            call.media = await media.encode(
                media_files(conversation),
                owner=call.owner + call.options.cache.salt,
                project=call.project,
                check_request=partial(self._check_before_encoding, call, texts, spec),
            )
        tokens, spans = model.tokenizer.join(prompt, texts, call.media.media)
        if spec is not None:
            turn_format = constrained_format(prompt.turn_format, spec)
            prompt = replace(prompt, turn_format=turn_format)
        reasoning = await find_reasoning(prompt, conversation, model)
        content = content_finder(prompt, conversation, call.options.stopping.stop)
        # Parsers must see these control tokens.
        visible = model.vocabulary.control_tokens_in(prompt.turn_format.marker_texts)
        checked = await self._check(call, Prompt([*tokens], "messages", spans), spec)
        requests = [
            replace(
                each,
                visible_tokens=visible,
                end_texts=prompt.stop_texts,
                content=content,
                reasoning=reasoning,
            )
            for each in checked.requests
        ]
        turns = chat_turns(call, conversation, prompt, requests)
        ignored = (*ignored_options(conversation, prompt.thinking), *checked.ignored_options)
        text = ConversationText(
            model.vocabulary, self.templates, conversation, prompt, [*map(len, texts)]
        )
        checked = checked._replace(requests=requests, ignored_options=ignored)
        return _submit(call, checked, text), turns

    async def _chat_in_text_mode(
        self, call: Call[pb.ChatRequest], model: TextProcessor
    ) -> tuple[AcceptedRequest, Sequence[MessageTurn]]:
        """Submit the conversation itself, which the engine renders."""
        conversation = await read_conversation(call.request.conversation, self.limits)
        conversation = await self.media_inputs.read_for_engine(conversation)
        requests = text_requests(call, conversation, model.default_sampling)
        key = UsageKey(call.project, call.caller.principal.key_id, self._resolve(call).name)
        call.admission = await self.admit(key, text_need(call, requests[0]))
        max_calls = None if conversation.tool_choice.parallel else 1
        turns = [MessageTurn(i, max_calls=max_calls) for i in range(len(requests))]
        ignored = tuple(ignored_in_text_mode(call, conversation))
        return _submit(call, _Checked(requests, (), key, ignored)), turns

    async def _check_before_encoding(
        self, call: Call[pb.ChatRequest], texts: Sequence[Sequence[int]], spec: OutputSpec | None
    ) -> None:
        """Raise what refuses a request with any pictures and sounds, except too long a text."""
        # Each picture or sound has at least one token. `chat` checks that the whole prompt fits.
        tokens = [0, *chain.from_iterable(texts)][: call.slot_tokens - 1]
        await self._check(call, Prompt(tokens, "messages"), spec, Need(len(tokens)))
        call.admission.release()

    async def _check(
        self, call: AnyCall, prompt: Prompt, spec: OutputSpec | None, need: Need | None = None
    ) -> _Checked:
        """Raise what refuses a request whose prompt is known; convert and admit it.

        `need` is that of a check, after which the request is checked again: limits in shadow mode
        do not count it.
        """
        constraint, ignored = await self._constraint(call, spec)
        predicted = await _predicted(call)
        key = UsageKey(call.project, call.caller.principal.key_id, self._resolve(call).name)
        call.admission = await self.admit(
            key, need or _estimated_need(call, prompt), is_check=need is not None
        )
        # No await from here on, because an adapter must not be freed before it is used.
        applied = resolve_adapters(
            call.options.adapters, self._resolve(call), self.pool.catalog, call.project
        )
        requests = [
            replace(each, constraint=constraint, predicted=predicted)
            for each in to_requests(call, prompt, applied.stack)
        ]
        return _Checked(requests, applied.adapters, key, ignored)

    async def _constraint(
        self, call: AnyCall, spec: OutputSpec | None
    ) -> tuple[Constraint | None, tuple[str, ...]]:
        """The constraint, and the fields that it does not enforce. An upstream that cannot take it,
        or cannot go on within it, writes calls of tools that are not strict without it."""
        if spec is None:
            return None, ()
        features = call.loaded.ready.features
        vocabulary = call.model.grammar_vocabulary(features)
        grammar, ignored = await self.grammars.compile(spec, vocabulary)
        field = spec.form.field if spec.form is not None else "tools"
        constraint = Constraint(grammar, field, spec.only_form)
        if features is None or not spec.may_be_free:
            return constraint, ignored
        if features.takes(constraint) and not call.options.resume:
            return constraint, ignored
        return None, tuple(sorted(spec.loose_fields))

    def _resolve(self, call: AnyCall) -> ResolvedModel:
        """Resolve the model name again. Raises `ModelNotFound` if it now names another model than
        at the start of the call."""
        name = call.request.model
        resolved = self.pool.catalog.resolve(name, call.project)
        if resolved.model.name != call.loaded.opened.name:
            raise ModelNotFound(model=name)
        return resolved

    async def render(
        self, name: str, request: pb.Conversation
    ) -> tuple[RenderedPrompt, Sequence[int]]:
        """Render a conversation for a model; return the prompt with its tokens. The model is loaded
        if there are pictures or sounds, which are counted, but not encoded."""
        conversation = await read_conversation(request, self.limits)
        if not has_encoded(conversation):
            conversation = await self.media_inputs.read(conversation, None)
            return await self._render(conversation, await self.processor(name))
        project = current_principal().project
        entry = self.pool.catalog.resolve(name, project).model
        async with self.pool.use(entry, ModelFile.check_chats) as loaded:
            conversation = await self.media_inputs.read(conversation, loaded.media)
            media: Sequence[EncodedMedia] = ()
            if loaded.media is not None:
                files, owner = media_files(conversation), self.groups.owner(project)
                media = await loaded.media.count(files, owner=owner, project=project)
            return await self._render(conversation, loaded.processor, media)

    async def _render(
        self,
        conversation: Conversation,
        model: ModelProcessor,
        media: Sequence[EncodedMedia] = (),
    ) -> tuple[RenderedPrompt, Sequence[int]]:
        prompt = await self.templates.render(model.template, conversation)
        return prompt, (await model.tokenizer.tokenize_prompt(prompt, media)).tokens

    async def processor(self, name: str) -> ModelProcessor:
        """Return the processor of a model by name. Raises like `Catalog.resolve`,
        `ModelPool.processor` and `with_tokens`."""
        resolved = self.pool.catalog.resolve(name, current_principal().project)
        return with_tokens(await self.pool.processor(resolved.model))


def _check_room(call: AnyCall) -> None:
    """Raise what refuses a request whatever its prompt is, before it costs anything."""
    num_choices = call.num_choices
    _check_not_full(call)
    call.loaded.engine.check_room(QueueEntry(call.project, call.priority, 0), num_choices)


def _check_not_full(call: AnyCall) -> None:
    """Raise `ReplicaFull` for a request that its caller then sends to another replica."""
    if call.caller.may_move and call.loaded.engine.is_full:
        raise ReplicaFull(model=call.loaded.opened.name)


async def _predicted(call: AnyCall) -> "array[int]":
    """Tokenize the predicted output for drafts, truncated to the context. Control tokens are plain
    text."""
    text = TextToTokenize(call.options.speculation.prediction)
    if not text.text:
        return array("i")
    tokens = await call.model.tokenizer.tokenize(text, field="prediction")
    return array("i", tokens[: call.slot_tokens])


def _estimated_need(call: AnyCall, prompt: Prompt) -> Need:
    num_prompt, stopping = len(prompt.tokens), call.options.stopping
    remaining = max(0, call.slot_tokens - num_prompt)
    max_tokens = stopping.max_tokens if stopping.HasField("max_tokens") else remaining
    return Need(num_prompt, max(0, min(max_tokens, remaining)), call.num_choices)


def _submit(call: AnyCall, checked: _Checked, text: PromptText | None = None) -> AcceptedRequest:
    requests, adapters, key, ignored = checked
    if (features := call.loaded.ready.features) is not None:
        for each in requests:
            features.check(each)
    _check_not_full(call)  # again: others may have come while its prompt was made
    stream, position = call.loaded.engine.submit(requests, call.options.label, adapters)
    return AcceptedRequest(
        requests,
        stream,
        position,
        key,
        call.admission,
        SessionKey.of(call.request, call.project),
        prompt_token_ids=call.options.output.prompt_token_ids,
        interval_s=call.options.output.interval_ms / 1000,
        ignored_options=ignored,
        model_digest=call.loaded.digest,
        input_digest=requests[0].input_digest if call.options.output.token_ids else "",
        text=text,
        label=call.options.label,
    )
