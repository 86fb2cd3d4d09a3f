"""Pictures, sounds and files through every surface, with the official SDK.

The models are small and random: their answers depend on every part of the prompt.
"""

import json
from typing import Any

import openai
import pytest

from tests.e2e.conftest import AUDIO, IMAGES
from tests.support.pictures import data_url, noise_png
from tests.support.services import MODEL, Corral
from tests.support.sounds import encode, sine

pytestmark = [
    pytest.mark.e2e,
    # The SDK deprecates the Assistants API.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ASK = {"type": "input_text", "text": "What is this?"}


@pytest.fixture
def server(media_server: Corral) -> Corral:
    """A server with models that read images and audio."""
    return media_server


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
