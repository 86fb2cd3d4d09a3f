"""Pictures, sounds and documents through the gateway, with the official SDK and small random
models."""

import asyncio
import base64
import os
import signal
from typing import Any

import openai
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import model_pb2

from tests.e2e.conftest import AUDIO, IMAGES
from tests.support.pictures import data_url, noise_png
from tests.support.rpc import Rpc, endless_chat, read_delta
from tests.support.services import MODEL, Corral

pytestmark = pytest.mark.e2e

ENCODER = "inference_svc.media.encoder_main"
QUESTION = {"type": "text", "text": "What is this?"}


@pytest.fixture
def server(media_server: Corral) -> Corral:
    """A server with models that read images and audio."""
    return media_server


def picture_part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


async def ask(client: openai.AsyncOpenAI, *parts: Any, model: str = IMAGES, **options: Any) -> Any:
    """A greedy answer of eight tokens."""
    return await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [*parts]}],
        temperature=0,
        max_tokens=8,
        extra_body={"ignore_eos": True},
        **options,
    )


async def test_a_picture_is_part_of_the_prompt(aclient: openai.AsyncOpenAI) -> None:
    """The answer depends on it; seen again, it is in the cache."""
    question = {"type": "text", "text": QUESTION["text"] * 20}  # long enough to be worth saving
    first = await ask(aclient, picture_part(noise_png(1)), question)
    other = await ask(aclient, picture_part(noise_png(2)), question)
    again = await ask(aclient, picture_part(noise_png(1)), question)
    text = await ask(aclient, question)

    assert again.choices[0].message.content == first.choices[0].message.content
    assert other.choices[0].message.content != first.choices[0].message.content
    picture_tokens = first.usage.prompt_tokens - text.usage.prompt_tokens
    assert first.usage.prompt_tokens_details.image_tokens == picture_tokens > 16
    assert again.usage.prompt_tokens_details.cached_tokens >= picture_tokens


async def test_tokens_are_counted_without_an_answer(rpc: Rpc, aclient: openai.AsyncOpenAI) -> None:
    """As many as the prompt has."""
    answer = await ask(aclient, picture_part(noise_png(3)), QUESTION)
    conversation: Any = {
        "messages": [
            {"role": 3, "parts": [{"image": {"data": noise_png(3)}}, {"text": QUESTION["text"]}]}
        ]
    }
    counted = await rpc.inference.CountTokens(
        pb.CountTokensRequest(model=IMAGES, conversation=conversation)
    )

    assert counted.prompt_tokens == answer.usage.prompt_tokens


async def test_models_tell_what_they_take(rpc: Rpc) -> None:
    """And refuse other parts by name."""
    modalities = {
        model.name: list(model.input_modalities)
        for model in (await rpc.inference.ListModels(pb.ListModelsRequest())).models
    }

    assert modalities[MODEL] == [model_pb2.MODALITY_TEXT]
    assert modalities[IMAGES] == [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_IMAGE]
    assert modalities[AUDIO] == [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_AUDIO]


@pytest.mark.parametrize("model", [MODEL, AUDIO])
async def test_a_model_without_images_refuses_them(aclient: openai.AsyncOpenAI, model: str) -> None:
    """The error names the part."""
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(aclient, QUESTION, picture_part(noise_png(1)), model=model)

    assert refused.value.param == "messages[0].content[1].image_url"


@pytest.mark.parametrize(
    "data",
    [b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", noise_png(1)[:200], noise_png(5, (1, 400))],
    ids=["empty", "svg", "truncated", "thin"],
)
async def test_an_unusable_picture_is_refused(aclient: openai.AsyncOpenAI, data: bytes) -> None:
    """The error names the part."""
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(aclient, QUESTION, picture_part(data))

    assert refused.value.param is not None
    assert refused.value.param.startswith("messages[0].content[1].image_url")


async def test_a_document_is_read_by_any_model(aclient: openai.AsyncOpenAI) -> None:
    """Its text is part of the prompt."""
    text = base64.b64encode(b"Foxes eat mice. " * 20).decode()
    document = {
        "type": "file",
        "file": {"filename": "foxes.txt", "file_data": f"data:text/plain;base64,{text}"},
    }
    alone = await ask(aclient, QUESTION, model=MODEL)
    with_document = await ask(aclient, document, QUESTION, model=MODEL)

    assert with_document.usage.prompt_tokens > alone.usage.prompt_tokens + 60


async def test_a_crash_of_the_encoder_affects_no_stream(
    server: Corral, rpc: Rpc, aclient: openai.AsyncOpenAI
) -> None:
    """A stream of the same model goes on, and pictures are answered again."""
    expected = await ask(aclient, picture_part(noise_png(1)), QUESTION)
    chat = endless_chat()
    chat.model = IMAGES
    stream = rpc.inference.Chat(chat)
    await read_delta(stream)
    encoders = [each.pid for each in server.program.family() if ENCODER in each.command]
    assert encoders
    for pid in encoders:
        os.kill(pid, signal.SIGKILL)
    asked = asyncio.create_task(ask(aclient, picture_part(noise_png(99)), QUESTION))
    for _ in range(20):
        await read_delta(stream)
    stream.cancel()
    answer = await asked
    again = await ask(aclient, picture_part(noise_png(1)), QUESTION)

    assert answer.choices[0].finish_reason == "length"
    assert again.choices[0].message.content == expected.choices[0].message.content
