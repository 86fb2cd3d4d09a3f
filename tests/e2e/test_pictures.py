"""Pictures, sounds and documents through every surface, with the official SDK.

The models are small and random: their answers depend on every part of the prompt.
"""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import model_pb2

from tests.support.media_models import write_pair
from tests.support.pictures import data_url, noise_png
from tests.support.rpc import Rpc, endless_chat, expect_refusal, read_delta
from tests.support.services import MODEL, Corral, corral_up
from tests.support.sounds import encode, sine

pytestmark = [
    pytest.mark.e2e,
    # The SDK deprecates the Assistants API.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
IMAGES, AUDIO = "reads-images", "reads-audio"
ENCODER = "inference_svc.media.encoder_main"
TRUNCATED = noise_png(1)[:200]
QUESTION = {"type": "text", "text": "What is this?"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` with the demo model for text, and small random ones for images and audio."""
    folder = tmp_path_factory.mktemp("media")
    pairs = {IMAGES: write_pair("janus_pro", folder), AUDIO: write_pair("qwen2a", folder)}
    flags = ["--model", f"{MODEL}=bundled"]
    per_model: dict[str, Any] = {MODEL: {"projector": "none"}}
    for name, pair in pairs.items():
        flags += ["--model", f"{name}={pair.model}"]
        per_model[name] = {
            "projector": str(pair.projector),
            "load": "on_demand",
            "context_tokens": 2048,
        }
    # Two threads compete with the engine for the cores of a small machine.
    inference = {"per_model": per_model, "media.encoder_threads": 2}
    with corral_up(folder, *flags, inference=inference) as corral:
        yield corral


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
    [b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", TRUNCATED, noise_png(5, (1, 400))],
    ids=["empty", "svg", "truncated", "thin"],
)
async def test_an_unusable_picture_is_refused(aclient: openai.AsyncOpenAI, data: bytes) -> None:
    """The error names the part."""
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(aclient, QUESTION, picture_part(data))

    assert refused.value.param is not None
    assert refused.value.param.startswith("messages[0].content[1].image_url")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"constraint": {"choices": {"values": ["yes", ""]}}}, "a choice is empty"),
        ({"constraint": {"gbnf": "root ::= ("}}, "grammar"),
        ({"stopping": {"max_tokens": -1}}, "'max_tokens'"),
        ({"adapters": [{"adapter": "none"}]}, "'none'"),
    ],
)
async def test_a_picture_is_not_read_for_refused_options(
    rpc: Rpc, options: Any, problem: str
) -> None:
    """They are checked before pictures are decoded and encoded."""
    conversation: Any = {"messages": [{"role": 3, "parts": [{"image": {"data": TRUNCATED}}]}]}
    request = pb.ChatRequest(model=IMAGES, conversation=conversation, options=options)

    assert problem in (await expect_refusal(rpc, request)).message


async def test_a_damaged_picture_is_named_also_beside_too_long_a_text(
    aclient: openai.AsyncOpenAI,
) -> None:
    """Callers that shorten the prompt are told of the picture first."""
    text = {"type": "text", "text": "long " * 2048}
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(aclient, text, picture_part(TRUNCATED))

    assert (refused.value.param or "").startswith("messages[0].content[1].image_url")


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


# --- responses, threads and batches ---

ASK = {"type": "input_text", "text": "What is this?"}


async def store(client: openai.AsyncOpenAI, seed: int) -> str:
    """Store a picture. Returns its file id."""
    file = await client.files.create(file=("noise.png", noise_png(seed)), purpose="vision")
    return file.id


async def respond(client: openai.AsyncOpenAI, *content: Any, **options: Any) -> Any:
    """A greedy response of the model for images."""
    return await client.responses.create(
        model=IMAGES,
        input=options.pop("input", [{"role": "user", "content": [*content, ASK]}]),
        temperature=0,
        max_output_tokens=16,
        **options,
    )


def image(seed: int) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(noise_png(seed)), "detail": "auto"}


async def test_a_response_reads_a_picture_by_url_and_by_file(aclient: openai.AsyncOpenAI) -> None:
    """Both are the same; another picture has another answer. A next response still sees it."""
    by_url = await respond(aclient, image(1))
    by_file = await respond(
        aclient, {"type": "input_image", "file_id": await store(aclient, 1), "detail": "auto"}
    )
    other = await respond(aclient, image(2))
    follow = [{"role": "user", "content": "And now?"}]
    after = [
        await respond(aclient, input=follow, previous_response_id=before.id)
        for before in (by_url, by_file, other)
    ]

    assert by_url.output_text == by_file.output_text != other.output_text
    assert after[0].output_text == after[1].output_text != after[2].output_text


async def test_the_output_of_a_function_may_be_a_picture(aclient: openai.AsyncOpenAI) -> None:
    """The answer depends on it."""
    answers = []
    for seed in (1, 2, 1):
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": [image(seed)]}
        answers.append(
            (
                await respond(aclient, input=[{"role": "user", "content": "Look!"}, call, output])
            ).output_text
        )

    assert answers[0] == answers[2] != answers[1]


async def test_tokens_of_a_response_are_counted_with_its_pictures(
    aclient: openai.AsyncOpenAI,
) -> None:
    """As many as its usage says."""
    content: Any = [{"role": "user", "content": [image(3), ASK]}]
    counted = await aclient.responses.input_tokens.count(model=IMAGES, input=content)
    answer = await respond(aclient, input=content)

    assert counted.input_tokens == answer.usage.input_tokens


async def test_a_document_is_an_input_of_a_response(aclient: openai.AsyncOpenAI) -> None:
    """By its id; its text is part of the prompt of a model that only reads."""
    file = await aclient.files.create(
        file=("foxes.txt", b"Foxes eat mice. " * 20), purpose="user_data"
    )
    alone_content: Any = [{"role": "user", "content": [ASK]}]
    content: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": file.id}, ASK]}]
    with_file = await aclient.responses.create(model=MODEL, input=content, max_output_tokens=16)
    alone = await aclient.responses.create(model=MODEL, input=alone_content, max_output_tokens=16)

    assert with_file.usage is not None
    assert alone.usage is not None
    assert with_file.usage.input_tokens > alone.usage.input_tokens + 60


async def test_a_run_sees_the_pictures_of_its_thread(aclient: openai.AsyncOpenAI) -> None:
    """By their file ids and as data URLs."""
    assistant = await aclient.beta.assistants.create(model=IMAGES, temperature=0)
    texts = []
    for seed in (1, 2):
        file_id = await store(aclient, seed)
        for part in (
            {"type": "image_file", "image_file": {"file_id": file_id}},
            {"type": "image_url", "image_url": {"url": data_url(noise_png(seed))}},
        ):
            content: Any = [part, {"type": "text", "text": "What is this?"}]
            run = await aclient.beta.threads.create_and_run_poll(
                assistant_id=assistant.id,
                thread={"messages": [{"role": "user", "content": content}]},
                max_completion_tokens=256,
                poll_interval_ms=50,
            )
            messages = await aclient.beta.threads.messages.list(run.thread_id, order="asc")
            texts.append(messages.data[-1].content[0].to_dict())

    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert texts[0] != texts[2]


async def test_lines_of_a_batch_see_pictures(aclient: openai.AsyncOpenAI) -> None:
    """A data URL, and a file of the project; each with the answer of a chat."""
    url, file_id = data_url(noise_png(1)), await store(aclient, 1)
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "file", "file": {"file_id": file_id}},
    ]
    bodies = [
        {
            "model": IMAGES,
            "messages": [
                {"role": "user", "content": [part, {"type": "text", "text": "What is this?"}]}
            ],
            "temperature": 0,
            "max_tokens": 8,
        }
        for part in parts
    ]
    lines = "\n".join(
        json.dumps(
            {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}
        )
        for i, body in enumerate(bodies)
    )
    file = await aclient.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    batch = await aclient.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ("completed", "failed"):
        batch = await aclient.batches.retrieve(batch.id, extra_headers={"prefer": "wait=10"})
    assert batch.output_file_id is not None
    output = (await aclient.files.content(batch.output_file_id)).text
    answers = [json.loads(line)["response"]["body"] for line in output.splitlines()]
    chat: Any = bodies[0]
    expected = await aclient.chat.completions.create(**chat)

    for answer in answers:
        assert answer["choices"][0]["message"]["content"] == expected.choices[0].message.content


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK deprecates translations
async def test_audio_is_transcribed(aclient: openai.AsyncOpenAI) -> None:
    """Whole and streamed alike, and translated; a model that reads no audio is refused by name."""
    sound = ("tone.wav", encode(sine(440.0, 16_000, 0.5), 16_000, "WAV"))
    # The first one computes the prompt in other batches than those that find it in the cache.
    for _ in range(2):
        whole = await aclient.audio.transcriptions.create(model=AUDIO, file=sound, temperature=0)
    stream = await aclient.audio.transcriptions.create(
        model=AUDIO, file=sound, temperature=0, stream=True
    )
    events = [event async for event in stream]
    translation = await aclient.audio.translations.create(model=AUDIO, file=sound)
    with pytest.raises(openai.BadRequestError) as deaf:
        await aclient.audio.transcriptions.create(model=MODEL, file=sound)

    assert whole.text
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole.text
    assert "".join(e.delta for e in events if e.type == "transcript.text.delta") == whole.text
    assert translation.text not in ("", whole.text)
    assert deaf.value.param == "model"
