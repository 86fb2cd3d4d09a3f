"""Transcriptions and translations by the official OpenAI client."""

from collections.abc import AsyncIterator

import openai
import pytest
from corral.inference.v1 import model_pb2

from dialects.shared.media import MAX_FILE_BYTES
from svc_kit.errors import InvalidField
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import Loopback
from tests.unit.dialects.openai.chat.test_transcription import WAV

FILE = ("speech.wav", WAV)


@pytest.fixture
def fake() -> FakeInference:
    """An inference service with a model that reads audio and one that does not."""
    fake = FakeInference(("ears", "deaf"))
    fake.models[0].input_modalities.extend([model_pb2.MODALITY_TEXT, model_pb2.MODALITY_AUDIO])
    return fake


@pytest.fixture
async def client(gateway: Loopback) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    url = f"{gateway.url}/v1"
    async with openai.AsyncOpenAI(
        http_client=http, api_key="any", max_retries=0, base_url=url
    ) as sdk:
        yield sdk


async def test_each_format_is_parsed(client: openai.AsyncOpenAI, fake: FakeInference) -> None:
    """json, text, and verbose_json with the duration."""
    create = client.audio.transcriptions.create
    plain = await create(model="ears", file=FILE, prompt="Hi", language="en", temperature=0.5)
    text = await create(model="ears", file=FILE, response_format="text")
    verbose = await create(model="ears", file=FILE, response_format="verbose_json", language="en")

    assert plain.text == verbose.text == "Hello world"
    assert plain.usage is not None
    assert plain.usage.type == "tokens"
    assert (plain.usage.input_tokens, plain.usage.output_tokens) == (3, 3)
    assert text == "Hello world\n"
    assert (verbose.duration, verbose.language) == (0.5, "en")
    first = fake.calls.requests[0]
    assert first.conversation.messages[0].parts[1].audio.data == WAV
    assert first.options.sampling.temperature == 0.5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK deprecates translations
async def test_audio_is_translated(client: openai.AsyncOpenAI, fake: FakeInference) -> None:
    """By another instruction; the language of the text is English."""
    create = client.audio.translations.create
    plain = await create(model="ears", file=FILE, prompt="Names: Ada.")
    text = await create(model="ears", file=FILE, response_format="text")
    verbose = await create(model="ears", file=FILE, response_format="verbose_json")
    with pytest.raises(openai.BadRequestError) as refused:
        await create(model="deaf", file=FILE)

    assert plain.text == verbose.text == "Hello world"
    assert text == "Hello world\n"
    assert (verbose.duration, verbose.language) == (0.5, "english")
    instruction, audio = fake.calls.requests[0].conversation.messages[0].parts
    assert instruction.text == "Translate the audio to English text. Names: Ada."
    assert audio.audio.data == WAV
    assert refused.value.param == "model"


async def test_a_stream_has_deltas_and_the_whole_text(client: openai.AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(model="ears", file=FILE, stream=True)
    events = [event async for event in stream]

    assert [event.type for event in events] == [
        *["transcript.text.delta"] * 3,
        "transcript.text.done",
    ]
    assert "".join(event.delta for event in events[:-1] if hasattr(event, "delta")) == "Hello world"
    assert getattr(events[-1], "text", None) == "Hello world"


async def test_bad_requests_name_the_field(client: openai.AsyncOpenAI, fake: FakeInference) -> None:
    """A model that reads no audio, a form without a file or with one that is too large, and a file
    that the inference service refuses."""
    create = client.audio.transcriptions.create
    fake.script.refusal = InvalidField(field="messages[0].parts[1].audio", problem="is not sound")
    for model, data, param in [
        ("deaf", WAV, "model"),
        ("ears", b"", "file"),
        ("ears", bytes(MAX_FILE_BYTES + 1), "file"),
        ("ears", b"noise", "file"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model=model, file=("x.wav", data))
        assert caught.value.param == param
    with pytest.raises(openai.NotFoundError):
        await create(model="unknown", file=FILE)
