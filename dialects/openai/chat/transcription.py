"""The forms of POST /v1/audio/transcriptions and translations, their Chat calls, and their response
objects and events.

A model that reads audio is instructed to transcribe or translate it. It returns no timestamps.
"""

from collections.abc import Iterator, Mapping, Sequence
from struct import unpack_from
from typing import Annotated, Any, ClassVar, Final, Literal, NotRequired, TypeVar

import orjson
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2, model_pb2
from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from dialects.openai.chat.chat_request import chat_request, parse_chat
from dialects.openai.errors import Error, error_body
from dialects.openai.shared.objects import DONE, sse_data
from dialects.shared.fields import WireModel, validate
from dialects.shared.parameters import Policy, Refused
from svc_kit.errors import DomainError, InvalidField, UnsupportedValue

_UNSUPPORTED_FORMATS: Final = ("srt", "vtt", "diarized_json")
_BOOLEANS: Final = {"true": True, "false": False}
_RIFF_HEADER: Final = 12
_CHUNK_HEADER: Final = 8


Task = Literal["transcribe", "translate"]


class AudioFields(WireModel):
    """Fields of both forms, without the file."""

    policy: ClassVar[Policy] = {
        "chunking_strategy": Refused("the audio is read whole", ("auto",)),
        "include": Refused("transcriptions have no log probabilities"),
        "known_speaker_names": Refused("speakers are not told apart"),
        "known_speaker_references": Refused("speakers are not told apart"),
        "timestamp_granularities": Refused("models that read audio give no timestamps"),
    }
    task: ClassVar[Task]
    instruction: ClassVar[str]
    model: Annotated[str, Field(min_length=1)] = Field(description="A model that reads audio.")
    prompt: str | None = Field(None, description="Further instructions, such as names to expect.")
    response_format: Literal["json", "text", "verbose_json"] | None = Field(
        None, description="verbose_json has the duration too, which is known for WAV files only."
    )
    temperature: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="Default: 0.")


class TranscriptionFields(AudioFields):
    """Fields of the form of a transcription."""

    task = "transcribe"
    instruction = "Transcribe the audio to text."
    language: Annotated[str, Field(min_length=2, max_length=35, pattern="^[A-Za-z-]+$")] | None = (
        Field(None, description="The language of the audio, such as en.")
    )
    stream: bool | None = Field(None, description="Send the text as server-sent events.")


class TranslationFields(AudioFields):
    """Fields of the form of a translation."""

    task = "translate"
    instruction = "Translate the audio to English text."


FieldsT = TypeVar("FieldsT", bound=AudioFields)


def parse_transcription(form: Mapping[str, str]) -> TranscriptionFields:
    """Validate the text fields of a form. Raises DomainErrors with their names."""
    body = _parse(TranscriptionFields, form)
    if body.stream and body.response_format == "verbose_json":
        raise InvalidField(
            field="response_format", problem="with 'stream' it must be 'json' or 'text'"
        )
    return body


def parse_translation(form: Mapping[str, str]) -> TranslationFields:
    """Validate the text fields of a form. Raises DomainErrors with their names."""
    return _parse(TranslationFields, form)


def _parse(kind: type[FieldsT], form: Mapping[str, str]) -> FieldsT:
    fields: dict[str, Any] = {name.removesuffix("[]"): text for name, text in form.items() if text}
    if fields.get("response_format") in _UNSUPPORTED_FORMATS:
        raise UnsupportedValue(field="response_format", value=fields["response_format"])
    if "stream" in fields:
        fields["stream"] = _BOOLEANS.get(fields["stream"], fields["stream"])
    if "temperature" in fields:
        fields["temperature"] = _number(fields["temperature"])
    return validate(kind, fields)


def _number(text: str) -> float | str:
    """The number of a text; other text is returned unchanged, and refused by the model."""
    try:
        return float(text)
    except ValueError:
        return text


def transcription_request(body: AudioFields, data: bytes) -> inference_service_pb2.ChatRequest:
    """The Chat call. Raises InvalidField for verbose_json if the duration is not known."""
    if body.response_format == "verbose_json" and wav_duration(data) is None:
        problem = "verbose_json needs the duration, which is known for WAV files only"
        raise InvalidField(field="response_format", problem=problem)
    text = f"{body.instruction} {body.prompt}" if body.prompt else body.instruction
    if isinstance(body, TranscriptionFields) and body.language:
        text += f" (language: {body.language})"
    message = {"role": "user", "content": text}
    fields = {"model": body.model, "messages": [message], "temperature": body.temperature or 0}
    request = chat_request(parse_chat(fields | {"enable_thinking": False}))
    request.conversation.messages[0].parts.add(audio=chat_pb2.Media(data=data))
    return request


def check_reads_audio(model: model_pb2.Model) -> None:
    """Raise InvalidField for a loaded model that does not read audio.

    What a model reads may be unknown until it is loaded; the Chat call refuses it then.
    """
    is_loaded = model.state == model_pb2.Model.STATE_READY
    if is_loaded and model_pb2.MODALITY_AUDIO not in model.input_modalities:
        problem = f"the model '{model.name}' does not read audio; use one that does"
        raise InvalidField(field="model", problem=problem)


def wav_duration(data: bytes) -> float | None:
    """The duration of a WAV file in seconds; None for other files, and for malformed ones."""
    byte_rate = 0
    for name, start, size in _wav_chunks(data):
        if name == b"fmt " and size >= 16:
            sample_rate, _, block_bytes = unpack_from("<IIH", data, start + 4)
            byte_rate = sample_rate * block_bytes
        elif name == b"data" and byte_rate:
            return round(min(size, len(data) - start) / byte_rate, 3)
    return None


def _wav_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name of each chunk of a WAV file, where its content starts, and its length."""
    if data[:4] != b"RIFF" or data[8:_RIFF_HEADER] != b"WAVE":
        return
    start = _RIFF_HEADER
    while start + _CHUNK_HEADER <= len(data):
        (size,) = unpack_from("<I", data, start + 4)
        content = start + _CHUNK_HEADER
        if content + 16 <= len(data):
            yield data[start : start + 4], content, size
        start = content + size + size % 2


class AudioTokenCounts(TypedDict):
    """Input tokens of the sound and of the text."""

    audio_tokens: int
    text_tokens: int


class TranscriptionTokens(TypedDict):
    type: Literal["tokens"]
    input_tokens: int
    input_token_details: AudioTokenCounts
    output_tokens: int
    total_tokens: int


class AudioSeconds(TypedDict):
    """The duration of the sound."""

    type: Literal["duration"]
    seconds: float


class Transcription(TypedDict):
    """A transcription or translation; with verbose_json the task, the duration and the language."""

    task: NotRequired[Task]
    duration: NotRequired[float]
    text: str
    usage: TranscriptionTokens | AudioSeconds
    language: NotRequired[str]


class TranscriptTextDeltaEvent(TypedDict):
    type: Literal["transcript.text.delta"]
    delta: str


class TranscriptTextDoneEvent(TypedDict):
    """The whole text."""

    type: Literal["transcript.text.done"]
    text: str
    usage: TranscriptionTokens


_Event = TranscriptTextDeltaEvent | TranscriptTextDoneEvent
TranscriptEvent = TypeAliasType("TranscriptEvent", _Event | Error)


class CollectedTranscription:
    """Collects the events of the Chat call of a form, and writes them as events or an object."""

    def __init__(self, body: AudioFields, data: bytes) -> None:
        self._task = body.task
        self._language = body.language if isinstance(body, TranscriptionFields) else "english"
        self._duration = wav_duration(data) if body.response_format == "verbose_json" else None
        self._pieces: list[str] = []
        self._usage = generation_pb2.Usage()

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._pieces)

    def add(self, message: inference_service_pb2.ChatResponse, _call: int = 0) -> None:
        self._add_event(message)

    def _add_event(self, message: inference_service_pb2.ChatResponse) -> str:
        """Add one event. Returns its text, without spaces before the first word."""
        match message.WhichOneof("event"):
            case "delta":
                content = message.delta.content
                piece = content if self._pieces else content.lstrip()
                if piece:
                    self._pieces.append(piece)
                return piece
            case "done":
                self._usage = message.done.usage
        return ""

    def as_object(self) -> Transcription:
        """The transcription or translation."""
        if self._duration is None:
            return {"text": self.text, "usage": _usage_object(self._usage)}
        verbose: Transcription = {
            "task": self._task,
            "duration": self._duration,
            "text": self.text,
            "usage": {"type": "duration", "seconds": self._duration},
        }
        if self._language:
            verbose["language"] = self._language
        return verbose

    def frames(self, message: inference_service_pb2.ChatResponse, call: int = 0) -> Sequence[bytes]:
        """The server-sent events of one event of the call."""
        piece = self._add_event(message)
        if not piece:
            return ()
        return (_frame({"type": "transcript.text.delta", "delta": piece}),)

    def final_frames(self) -> Sequence[bytes]:
        """The last events."""
        usage = _usage_object(self._usage)
        return _frame({"type": "transcript.text.done", "text": self.text, "usage": usage}), DONE

    def failure(self, error: DomainError) -> bytes:
        """The last event of a failed stream."""
        return sse_data(orjson.dumps(error_body(error)))


def _frame(event: _Event) -> bytes:
    return sse_data(orjson.dumps(event))


def _usage_object(usage: generation_pb2.Usage) -> TranscriptionTokens:
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "input_token_details": {
            "audio_tokens": usage.audio_tokens,
            "text_tokens": usage.prompt_tokens - usage.audio_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
