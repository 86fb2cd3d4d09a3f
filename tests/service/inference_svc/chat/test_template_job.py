"""Chat templates in real child processes: limits, errors and rendering time."""

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
GROWS = "{% for m in messages if messages.append(m) is none %}{% endfor %}"
ONE_OPERATION = "{{ (9 ** 9) ** (9 ** 9) }}"
CONVERSATION = conversation(user("Hello there"), assistant("Hello!"), user("How are you?"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def templates() -> AsyncIterator[ChatTemplates]:
    async with SandboxPool() as pool:
        yield ChatTemplates(pool)


def make_template(source: str) -> ModelTemplate:
    return ModelTemplate(source, "gguf", "", "", ControlTexts([]))


async def refusal(templates: ChatTemplates, source: str) -> str:
    """Return the reason why a template is refused."""
    with pytest.raises(TemplateFailed) as raised:
        await templates.render(make_template(source), CONVERSATION)
    return raised.value.problem


async def test_endless_templates_are_stopped_and_delay_no_other_prompt(
    templates: ChatTemplates,
) -> None:
    """Loops and a single long operation. Other prompts need not wait for a child."""
    ordinary = make_template(FALLBACK_TEMPLATE)
    await templates.render(ordinary, CONVERSATION)
    hostile = [
        asyncio.create_task(refusal(templates, source)) for source in (LOOPS, ONE_OPERATION, GROWS)
    ]
    for _ in range(10):
        await templates.render(ordinary, CONVERSATION)

    assert set(await asyncio.gather(*hostile)) == {"rendering was stopped: it took longer than 2 s"}


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**10 }}",
        "{{ '%9999999999d' % 1 }}",
        "{% set n = namespace(x='xx') %}"
        "{% for i in range(9) %}{% set n.x = n.x * 1024 %}{% endfor %}",
    ],
)
async def test_a_template_that_needs_too_much_memory_is_stopped(
    templates: ChatTemplates, source: str
) -> None:
    """In one allocation or in growing ones; the next prompt is rendered."""
    problem = await refusal(templates, source)

    assert problem == "rendering was stopped: it needs too much memory"
    assert (await templates.render(make_template("{{ 1 + 1 }}"), CONVERSATION)).text == "2"


async def test_endless_recursion_is_refused(templates: ChatTemplates) -> None:
    """The error is that of a template nested too deeply."""
    problem = await refusal(templates, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")

    assert problem == "it is nested too deeply"


async def test_a_warm_child_keeps_the_compiled_template(templates: ChatTemplates) -> None:
    """The fastest of 50 renderings takes less than half as long as the first."""
    template = make_template(FALLBACK_TEMPLATE + "{# a template that no child has seen #}")
    times_s = []
    for _ in range(51):
        started_at = time.perf_counter()
        await templates.render(template, CONVERSATION)
        times_s.append(time.perf_counter() - started_at)

    assert min(times_s[1:]) < times_s[0] / 2
