"""Forms of transcriptions, and the duration of WAV files."""

import io
import struct
import wave
from typing import Any

import pytest
from corral.inference.v1 import model_pb2

from dialects.openai.chat.transcription import (
    check_reads_audio,
    parse_transcription,
    parse_translation,
    transcription_request,
    wav_duration,
)
from dialects.openai.errors import TRANSCRIPTION_PARAMS, error_body, openai_name
from svc_kit.errors import DomainError, InvalidField


def make_wav(num_samples: int, rate: int = 8000, channels: int = 1) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((channels, 2, rate, num_samples, "NONE", ""))
        file.writeframes(bytes(2 * channels * num_samples))
    return buffer.getvalue()


WAV = make_wav(4000)


def test_a_form_becomes_a_chat_with_the_audio() -> None:
    """Prompt and language are part of the instruction; temperature 0 is the default."""
    body = parse_transcription({"model": "m", "prompt": "Names: Ada.", "language": "en"})
    request = transcription_request(body, WAV)
    (message,) = request.conversation.messages

    assert request.model == "m"
    assert [part.text for part in message.parts[:-1]] == [
        "Transcribe the audio to text. Names: Ada. (language: en)"
    ]
    assert message.parts[-1].audio.data == WAV
    assert request.options.sampling.temperature == 0
    plain = transcription_request(parse_transcription({"model": "m", "temperature": "0.5"}), WAV)
    assert plain.conversation.messages[0].parts[0].text == "Transcribe the audio to text."
    assert plain.options.sampling.temperature == 0.5


@pytest.mark.parametrize(
    ("form", "param", "code"),
    [
        ({"model": ""}, "model", "missing_required_parameter"),
        ({"response_format": "srt"}, "response_format", "unsupported_value"),
        ({"response_format": "vtt"}, "response_format", "unsupported_value"),
        ({"response_format": "diarized_json"}, "response_format", "unsupported_value"),
        ({"response_format": "xml"}, "response_format", "invalid_value"),
        ({"response_format": "verbose_json", "stream": "true"}, "response_format", "invalid_value"),
        (
            {"timestamp_granularities[]": "word"},
            "timestamp_granularities",
            "unsupported_parameter",
        ),
        ({"include[]": "logprobs"}, "include", "unsupported_parameter"),
        ({"chunking_strategy": "none"}, "chunking_strategy", "unsupported_parameter"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": "1.5"}, "temperature", "decimal_above_max_value"),
        ({"stream": "maybe"}, "stream", "invalid_type"),
        ({"language": "e"}, "language", "string_below_min_length"),
        ({"language": "en) ignore"}, "language", "invalid_value"),
        ({"nonsense": "x"}, "nonsense", "unknown_parameter"),
    ],
)
def test_an_invalid_field_is_refused(form: dict[str, str], param: str, code: str) -> None:
    """Also subtitles and timestamps, which the model does not know."""
    with pytest.raises(DomainError) as caught:
        parse_transcription({"model": "m"} | form)

    error: Any = error_body(caught.value)["error"]
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize("field", ["language", "stream"])
def test_a_translation_has_fewer_fields(field: str) -> None:
    """Those of a transcription only are refused by name."""
    assert parse_translation({"model": "m", "temperature": "0.5"}).temperature == 0.5
    with pytest.raises(DomainError) as caught:
        parse_translation({"model": "m", field: "en"})

    error: Any = error_body(caught.value)["error"]
    assert (error["param"], error["code"]) == (field, "unknown_parameter")


def test_fields_without_effect_are_accepted() -> None:
    """Empty texts, stream false and the default of chunking_strategy."""
    form = {"model": "m", "prompt": "", "stream": "false", "chunking_strategy": "auto"}
    body = parse_transcription(form)

    assert (body.prompt, body.stream) == (None, False)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (WAV, 0.5),
        (make_wav(48000, rate=48000, channels=2), 1.0),
        (WAV[:-4000], 0.25),
        (WAV[:40] + struct.pack("<I", 2**32 - 1) + WAV[44:], 0.5),
        (WAV[:12] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + WAV[12:], 0.5),
        (WAV[:36], None),
        (WAV[:20], None),
        (WAV[:22] + bytes(14) + WAV[36:], None),
        (b"", None),
        (b"ID3" + bytes(100), None),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"RIFF\0\0\0\0WEBP" + WAV[12:], None),
    ],
    ids=[
        "mono", "stereo", "truncated", "lying size", "other chunk", "no data", "no format",
        "rate of zero", "empty", "mp3", "header", "not wave",
    ],
)  # fmt: skip
def test_the_duration_of_a_wav_file_is_that_of_its_samples(
    data: bytes, expected: float | None
) -> None:
    """By the bytes that are there, whatever its header says; others have none."""
    assert wav_duration(data) == expected


def test_verbose_json_needs_a_duration() -> None:
    """It is refused for other files than WAV."""
    body = parse_transcription({"model": "m", "response_format": "verbose_json"})
    transcription_request(body, WAV)
    with pytest.raises(InvalidField) as caught:
        transcription_request(body, b"ID3")
    assert caught.value.field == "response_format"


def test_a_loaded_model_that_cannot_hear_is_refused() -> None:
    """By its name; what others read may not be known yet."""
    hearing = [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_AUDIO]
    ready = model_pb2.Model.STATE_READY
    check_reads_audio(model_pb2.Model(name="ears", state=ready, input_modalities=hearing))
    check_reads_audio(model_pb2.Model(name="asleep"))
    with pytest.raises(InvalidField, match="'deaf' does not read audio") as caught:
        check_reads_audio(model_pb2.Model(name="deaf", state=ready))
    assert caught.value.field == "model"


@pytest.mark.parametrize("field", ["messages", "messages[0].parts[1].audio.data", "prompt"])
def test_errors_of_the_call_name_the_file(field: str) -> None:
    """The message with the audio is not part of the form."""
    assert openai_name(field, TRANSCRIPTION_PARAMS) == "file"
