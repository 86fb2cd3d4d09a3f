"""The output of a chat: content, reasoning and tool calls, and how engine and parser find them."""

import codecs
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from corral.inference.v1 import chat_pb2
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb

from inference_svc.chat.conversation import Conversation
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import Range
from inference_svc.chat.parsers.parser import TurnParser, make_finder
from inference_svc.chat.parsers.turn import TurnDelta
from inference_svc.chat.reasoning_support import reasoning_spec, token_budget
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.chat.tokenization import TextToTokenize
from inference_svc.engine import events
from inference_svc.engine.detokenizer import ContentFinder
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sequence import SequenceOutput, TokenPieces
from inference_svc.model_pool.catalog import ModelProcessor
from inference_svc.rpc.call import Call
from inference_svc.rpc.streaming import Turn, chosen_logprob
from inference_svc.upstream.pieces import VocabularyPieces
from svc_kit.errors import InvalidField


class ChatTurn(Turn[service_pb.ChatResponse]):
    """Content, reasoning and tool calls, for `Chat`; calls beyond `max_calls` are dropped. The
    texts of `stop` end turns in their content only."""

    response_type = service_pb.ChatResponse

    def __init__(
        self,
        index: int,
        parser: TurnParser,
        *,
        token_ids: bool,
        max_calls: int | None = None,
        stop: Collection[str] = (),
    ) -> None:
        super().__init__(index, token_ids=token_ids)
        self._stop = stop
        self._parser = parser
        self._max_calls = max_calls
        self._logprobs = ContentLogprobs()

    def delta(self, output: events.Delta) -> Sequence[service_pb.ChatResponse]:
        """Return the parsed output, all tokens, and the log probabilities of the content."""
        for text in output.texts:
            self._parser.feed(text)
        for logprob in output.logprobs:
            self._logprobs.add(logprob.text, chosen_logprob(logprob))
        responses = self._responses(self._parser.num_decided) or [service_pb.ChatResponse()]
        delta = responses[-1].delta
        self._write_tokens(output, delta)
        if self._token_ids:
            delta.held_logprobs.extend(self._logprobs.pop_new())
            delta.num_held = self._logprobs.num_held
        return responses

    def replay(
        self, request: SequenceRequest, pieces: TokenPieces, held: Sequence[pb.ChosenLogprob]
    ) -> None:
        """Parse the resumed tokens of its choice; what results was sent, except the log
        probabilities that were `held` back. Raises `InvalidField` for more than can be."""
        output = SequenceOutput(request)
        for token in request.resumed:
            added = output.add(token, pieces)
            self._parser.feed(added.text)
            if request.top_logprobs is not None:
                self._logprobs.add(added.piece, None)
            if added.is_end:
                break
        self._responses(self._parser.num_decided)
        self._logprobs.restore(held)

    def finish(self, finished: events.Finished) -> Sequence[service_pb.ChatResponse]:
        """Return the output that the parser withheld."""
        is_cut = finished.reason is events.FinishReason.LENGTH
        in_content = finished.stop_text in self._stop
        self._parser.finish("" if is_cut else finished.stop_text, in_content=in_content)
        return self._responses(None)

    def reason(self, finished: events.Finished) -> pb.FinishReason:
        """Return TOOL_CALLS if the turn stopped with calls, LENGTH if it ended inside a call, else
        the engine's reason."""
        if self._parser.ends_in_call:
            return pb.FINISH_REASON_LENGTH
        if finished.reason is events.FinishReason.STOP and self._parser.has_tool_calls:
            return pb.FINISH_REASON_TOOL_CALLS
        return super().reason(finished)

    def _responses(self, num_decided: int | None) -> list[service_pb.ChatResponse]:
        """The parsed output in order, if any; `num_decided` as in `ContentLogprobs.pop`."""
        deltas = self._parser.pop_deltas()
        responses: list[service_pb.ChatResponse] = []
        for number, parsed in enumerate(deltas, 1):
            decided = num_decided
            if number < len(deltas):
                decided = next((d.ranges[0][0] for d in deltas[number:] if d.ranges), decided)
            response = service_pb.ChatResponse()
            delta = response.delta
            self._write(parsed, delta, decided)
            if not delta.ByteSize():  # its calls are beyond the maximum, if it has any
                continue
            if responses:
                responses[-1].delta.is_continued = True
            delta.index = self._index
            responses.append(response)
        return responses

    def _write(
        self, parsed: TurnDelta, delta: service_pb.ChatDelta, num_decided: int | None
    ) -> None:
        delta.logprobs.extend(self._logprobs.pop(parsed.ranges, num_decided))
        delta.content = parsed.content
        if parsed.reasoning:
            delta.reasoning = parsed.reasoning
        for call in parsed.tool_calls:
            if self._max_calls is None or call.index < self._max_calls:
                delta.tool_calls.add(
                    index=call.index, id=call.id, name=call.name, arguments_json=call.arguments
                )


class MessageTurn(Turn[service_pb.ChatResponse]):
    """The parts of a message that the engine has parsed, for `Chat`; calls beyond `max_calls` are
    dropped."""

    response_type = service_pb.ChatResponse

    def __init__(self, index: int, *, max_calls: int | None = None) -> None:
        super().__init__(index, token_ids=False)
        self._max_calls = max_calls
        self._has_calls = False

    def delta(self, output: events.Delta) -> Sequence[service_pb.ChatResponse]:
        """The parts in as few deltas as their order allows."""
        responses = [service_pb.ChatResponse()]
        for part in output.parts:
            last = responses[-1].delta
            if _follows(part, last):
                last.is_continued, last.index = True, self._index
                responses.append(service_pb.ChatResponse())
            self._add(part, responses[-1].delta)
        self._write_tokens(output, responses[-1].delta)
        return responses

    def reason(self, finished: events.Finished) -> pb.FinishReason:
        if self._has_calls and finished.reason is events.FinishReason.STOP:
            return pb.FINISH_REASON_TOOL_CALLS
        return super().reason(finished)

    def _add(self, part: events.MessagePart, delta: service_pb.ChatDelta) -> None:
        delta.reasoning += part.reasoning
        delta.content += part.content
        delta.logprobs.extend(map(chosen_logprob, part.logprobs))
        for call in part.calls:
            self._has_calls = True
            if self._max_calls is not None and call.position >= self._max_calls:
                continue
            if not call.id and delta.tool_calls and delta.tool_calls[-1].index == call.position:
                delta.tool_calls[-1].arguments_json += call.arguments
            else:
                delta.tool_calls.add(
                    index=call.position, id=call.id, name=call.name, arguments_json=call.arguments
                )


def _follows(part: events.MessagePart, delta: service_pb.ChatDelta) -> bool:
    """Whether a part must be in a delta of its own: in one, reasoning comes before the content, and
    that before calls."""
    if part.reasoning:
        return bool(delta.content or delta.tool_calls)
    return bool(part.content and delta.tool_calls)


def chat_turns(
    call: Call[service_pb.ChatRequest],
    conversation: Conversation,
    prompt: RenderedPrompt,
    requests: Sequence[SequenceRequest],
) -> list[ChatTurn]:
    """Make the turn of each choice, behind its resumed tokens."""
    inline = call.request.reasoning_format == chat_pb2.REASONING_FORMAT_INLINE
    turns = [
        ChatTurn(
            i,
            make_parser(prompt, conversation, inline=inline),
            token_ids=call.options.output.token_ids,
            max_calls=None if conversation.tool_choice.parallel else 1,
            stop={*request.stop} - {*request.end_texts},
        )
        for i, request in enumerate(requests)
    ]
    for choice in call.options.resume:
        pieces = VocabularyPieces(call.model.vocabulary)
        turns[choice.index].replay(requests[choice.index], pieces, choice.held_logprobs)
    return turns


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


async def find_reasoning(
    prompt: RenderedPrompt, conversation: Conversation, model: ModelProcessor
) -> ReasoningSpec | None:
    """How the engine finds the reasoning, and its budget; None if the format has none."""
    spec = reasoning_spec(prompt.turn_format, opens_in_reasoning=prompt.opens_in_reasoning)
    budget = token_budget(conversation)
    if spec is None or budget is None:
        return spec
    texts = [TextToTokenize(each, parse_special=True) for each in prompt.turn_format.closings]
    closings = await model.tokenizer.tokenize_each(texts, field="messages")
    return spec._replace(budget=budget, closings=tuple(map(tuple, closings)))


def _offered(conversation: Conversation) -> OfferedTools:
    tools = conversation.tools if conversation.offers_tools else ()
    return OfferedTools({tool.name: tool.parameters_json for tool in tools})


class _Token(NamedTuple):
    text: bytes
    characters: Sequence[int]
    """The number of the character to which each byte belongs."""
    logprob: pb.ChosenLogprob | None


class ContentLogprobs:
    """The tokens of one turn of which it is not decided yet whether they are content.

    Those of reasoning, tool calls, markers and hidden control tokens have no log probabilities. A
    token of which a part is content has that part as its text, so that the texts of the tokens
    joined are the content.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_characters = 0
        self._tokens: deque[_Token] = deque()
        self._ranges: deque[Range] = deque()
        self._num_unknown = 0  # tokens without a log probability, which come first
        self._num_new = 0  # tokens since the last `pop_new`

    def add(self, text: bytes, logprob: pb.ChosenLogprob | None) -> None:
        """Add a token; a resumed one has no log probability."""
        if text:
            self._tokens.append(_Token(text, self._characters(text), logprob))
            self._num_unknown += logprob is None
            self._num_new += 1

    @property
    def num_held(self) -> int:
        """The number of log probabilities of tokens that are not decided."""
        return len(self._tokens) - self._num_unknown

    def pop_new(self) -> Sequence[pb.ChosenLogprob]:
        """Return those that are held back of the tokens since the last call, with their texts as
        they were sampled."""
        count, self._num_new = min(self._num_new, self.num_held), 0
        last = islice(reversed(self._tokens), count)
        return [each.logprob for each in last if each.logprob is not None][::-1]

    def restore(self, held: Sequence[pb.ChosenLogprob]) -> None:
        """Set the log probabilities of the last resumed tokens that are not decided. Raises
        `InvalidField` if there are fewer."""
        if len(held) > len(self._tokens):
            problem = f"there are {len(held)}, but these tokens hold back {len(self._tokens)}"
            raise InvalidField(field="resume.held_logprobs", problem=problem)
        self._num_new = 0
        self._num_unknown -= len(held)
        for number, logprob in enumerate(reversed(held), 1):
            self._tokens[-number] = self._tokens[-number]._replace(logprob=logprob)

    def pop(self, ranges: Iterable[Range], num_decided: int | None) -> Iterator[pb.ChosenLogprob]:
        """Yield the tokens of the content that are decided: those before this character. `ranges`
        are those of new content. None: all are decided."""
        if not self._tokens:
            return
        self._ranges += ranges
        while self._tokens and (
            num_decided is None or self._tokens[0].characters[-1] < num_decided
        ):
            token = self._tokens.popleft()
            text = self._visible(token)
            if token.logprob is None:
                self._num_unknown -= 1
            elif text:
                token.logprob.chosen.token = text
                yield token.logprob

    def _characters(self, text: bytes) -> Sequence[int]:
        begin = self._num_characters
        if text.isascii() and not self._decoder.getstate()[0]:
            self._num_characters += len(text)
            return range(begin, self._num_characters)
        characters = []
        for byte in text:
            self._num_characters += len(self._decoder.decode(bytes((byte,))))
            is_inside = bool(self._decoder.getstate()[0])
            characters.append(self._num_characters - (not is_inside))
        return characters

    def _visible(self, token: _Token) -> bytes:
        """The bytes of a token that are content."""
        visible = bytearray()
        for byte, character in zip(token.text, token.characters, strict=True):
            while self._ranges and self._ranges[0][1] <= character:
                self._ranges.popleft()
            if self._ranges and self._ranges[0][0] <= character:
                visible.append(byte)
        return bytes(visible)
