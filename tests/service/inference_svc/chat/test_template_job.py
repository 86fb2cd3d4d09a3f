"""Chat templates in real child processes: what they may not take, and what rendering costs."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from inference_svc.chat.control_tokens import ControlTexts
from inference_svc.chat.templates import FALLBACK_TEMPLATE, ChatTemplates, ModelTemplate
from svc_kit.errors import TemplateFailed
from svc_kit.sandbox.pool import SandboxPool
from tests.support.conversations import assistant, conversation, user

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ONE_OPERATION = "{{ (9 ** 9) ** (9 ** 9) }}"
TALK = conversation(user("Hello there"), assistant("Hello!"), user("How are you?"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def templates() -> AsyncIterator[ChatTemplates]:
    async with SandboxPool() as pool:
        yield ChatTemplates(pool)


def a_template(source: str) -> ModelTemplate:
    return ModelTemplate(source, "gguf", "", "", ControlTexts([]))


async def refusal(templates: ChatTemplates, source: str) -> tuple[str, float]:
    """Return why a template was refused, and after how long."""
    begun = time.monotonic()
    with pytest.raises(TemplateFailed) as raised:
        await templates.render(a_template(source), TALK)
    return raised.value.problem, time.monotonic() - begun


async def test_endless_templates_end_after_two_seconds_and_hold_nobody_up(
    templates: ChatTemplates,
) -> None:
    """Loops and single native operations alike; ordinary prompts are rendered meanwhile."""
    ordinary = a_template(FALLBACK_TEMPLATE)
    await templates.render(ordinary, TALK)
    hostile = [
        asyncio.create_task(refusal(templates, source))
        for source in (LOOPS, ONE_OPERATION, LOOPS + "{# again #}")
    ]
    for _ in range(10):
        await templates.render(ordinary, TALK)

    assert not any(task.done() for task in hostile)
    refusals = await asyncio.gather(*hostile)
    problems = {problem for problem, _ in refusals}
    assert problems == {"rendering was stopped: it took longer than 2 s"}
    assert 2 <= refusals[0][1] < 4


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**10 }}",
        "{{ '%9999999999d' % 1 }}",
        "{% set n = namespace(x='xx') %}"
        "{% for i in range(999) %}{% set n.x = n.x + n.x %}{% endfor %}",
    ],
)
async def test_a_template_that_takes_too_much_memory_is_ended(
    templates: ChatTemplates, source: str
) -> None:
    """In one piece or growing; the next prompt is rendered as ever."""
    problem, _ = await refusal(templates, source)

    assert problem == "rendering was stopped: it needs too much memory"
    assert (await templates.render(a_template("{{ 1 + 1 }}"), TALK)).text == "2"


async def test_endless_recursion_is_refused_in_a_child_too(templates: ChatTemplates) -> None:
    """The stack's end is the template's mistake."""
    problem, _ = await refusal(templates, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")

    assert problem == "it is nested too deeply"


async def test_rendering_is_cheap(templates: ChatTemplates) -> None:
    """A warm child answers in a millisecond; the best of many shows it on a busy machine."""
    template = a_template(FALLBACK_TEMPLATE)
    await templates.render(template, TALK)
    best = 9.0
    for _ in range(50):
        begun = time.perf_counter()
        await templates.render(template, TALK)
        best = min(best, time.perf_counter() - begun)

    assert best < 0.002
