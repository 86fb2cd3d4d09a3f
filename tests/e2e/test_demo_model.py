"""Skills of the demo model through the API, on which other tests rely.

The examination proper is `python -m tools.demo_model.evaluate`; here its first items are compared
with the recorded marks of the committed file.
"""

import json
from base64 import b64encode
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.services import MODEL, Corral
from tools.demo_model.evaluate import ask_all, record
from tools.demo_model.examination import EXAMINATION, items
from tools.demo_model.records import answers
from tools.demo_vision.sample import SAMPLE

pytestmark = pytest.mark.e2e

ITEMS = 5
"""Items per skill. All skills take five seconds on an idle machine."""


async def ask(client: openai.AsyncOpenAI, *messages: str, system: str = "", **fields: Any) -> str:
    """Send the messages as turns at temperature 0; return the last answer."""
    turns: list[ChatCompletionMessageParam] = []
    if system:
        turns.append({"role": "system", "content": system})
    answer = ""
    for text in messages:
        turns.append({"role": "user", "content": text})
        completion = await client.chat.completions.create(
            model=MODEL, messages=turns, temperature=0, **fields
        )
        answer = completion.choices[0].message.content or ""
        turns.append({"role": "assistant", "content": answer})
    return answer


async def test_the_evaluation_reaches_the_recorded_scores(up: Corral) -> None:
    """With a tolerance of one item per skill."""
    questions = [item for skill in EXAMINATION for item in items(skill, ITEMS)]
    marks = record(await ask_all(up.api, questions))
    recorded = {skill: answers()[skill][:ITEMS] for skill in EXAMINATION}
    worse = {
        skill: (marks[skill], recorded[skill])
        for skill in EXAMINATION
        if marks[skill].count("1") < recorded[skill].count("1") - 1
    }
    right, expected = ("".join(each.values()).count("1") for each in (marks, recorded))

    assert worse == {}
    assert right >= 0.98 * expected


@pytest.mark.parametrize("picture_first", [True, False])
async def test_the_sample_picture_is_described(
    aclient: openai.AsyncOpenAI, picture_first: bool
) -> None:
    """The bundled projector is used unless another is named; a second question may follow."""
    url = "data:image/png;base64," + b64encode(SAMPLE.read_bytes()).decode()
    parts: list[Any] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "Which shape is on the left?"},
    ]
    turns: list[Any] = [{"role": "user", "content": parts if picture_first else parts[::-1]}]

    async def answer() -> str | None:
        completion = await aclient.chat.completions.create(
            model=MODEL, messages=turns, temperature=0
        )
        return completion.choices[0].message.content

    assert await answer() == "heart"
    turns += [
        {"role": "assistant", "content": "heart"},
        {"role": "user", "content": "What color is on the right?"},
    ]
    assert await answer() == "green"


async def test_unseen_names_are_remembered(aclient: openai.AsyncOpenAI) -> None:
    """Across turns about other topics."""
    turns = ("My name is Zubrelka.", "My dog is called Quimbo.", "What is the capital of Italy?")

    assert await ask(aclient, *turns, "What is my name?") == "Your name is Zubrelka."
    assert await ask(aclient, *turns, "What is my dog called?") == "Your dog is called Quimbo."


async def test_a_system_prompt_is_followed(aclient: openai.AsyncOpenAI) -> None:
    """Persona, one word, capitals, closing phrase."""
    capital = "What is the capital of France?"

    assert await ask(aclient, "Who are you?", system="You are Zora, a baker.") == (
        "I am Zora, a baker."
    )
    assert await ask(aclient, capital, system="Answer with one word.") == "Paris"
    assert await ask(aclient, capital, system="Answer in capital letters.") == (
        "THE CAPITAL OF FRANCE IS PARIS."
    )
    assert await ask(aclient, capital, system='End every answer with "Ahoy!"') == (
        "The capital of France is Paris. Ahoy!"
    )


async def test_a_long_list_in_the_system_prompt_is_read(aclient: openai.AsyncOpenAI) -> None:
    """The answer is at its beginning, some hundred tokens away."""
    names = [f"{first}{last}" for first in ("Bo", "Ka", "Mu", "Re", "Ti") for last in
             ("bal", "din", "gor", "lan", "mik", "ros")]  # fmt: skip
    lines = [f"- {name} is a baker in Rome, phone {1234 + 97 * i}." for i, name in enumerate(names)]
    system = "Staff:\n" + "\n".join(lines)
    question = f"What is the phone number of {names[1]}?"

    assert await ask(aclient, question, system=system) == (
        f"The phone number of {names[1]} is 1331."
    )


async def test_values_become_json(aclient: openai.AsyncOpenAI) -> None:
    """With the requested keys in order."""
    text = (
        'Give me a JSON object with the keys "name", "age" and "city" for this: '
        "Krabumo is 31 years old and lives in Velta."
    )

    assert json.loads(await ask(aclient, text), object_pairs_hook=list) == [
        ("name", "Krabumo"),
        ("age", 31),
        ("city", "Velta"),
    ]


async def test_thinking_comes_before_the_answer(aclient: openai.AsyncOpenAI) -> None:
    """Steps in the reasoning, the result in the content."""
    completion = await aclient.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is 12 + 7 + 9?"}],
        temperature=0,
        extra_body={"enable_thinking": True},
    )
    message = completion.choices[0].message

    assert "12 + 7 = 19" in (message.model_extra or {})["reasoning_content"]
    assert message.content == "The result is 28."


async def test_a_conversation_is_summarized(aclient: openai.AsyncOpenAI) -> None:
    """Statements and questions, in order."""
    turns = ("My name is Anna.", "What is the capital of Spain?", "Summarize our conversation.")

    assert await ask(aclient, *turns) == (
        "You told me that your name is Anna. You asked for the capital of Spain."
    )
