"""A place of a conversation is changed: the divergence of the two prompts names that place."""

import asyncio
from array import array
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference_svc.chat.conversation import Conversation, Message, TextPart, ToolCall, ToolSpec
from inference_svc.chat.divergence_text import ConversationText
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.engine.events import DivergenceText
from inference_svc.engine.kv_cache.divergence import find_divergence
from inference_svc.engine.slots import Slot
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.metadata import describe_model
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.conversations import assistant, conversation, result, system, user
from tests.support.examples import examples
from tests.support.sandbox_jobs import InlineJobs
from tests.support.sequences import make_request

TOOLS_FIRST = (
    "[begin]{% for tool in tools or [] %}"
    "{{ tool.function.description }} = {{ tool | tojson(indent=1) }}\n"
    "{% endfor %}{{ strftime_now('%d %b %Y') }}\n{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content | trim }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}\n{% endfor %}[assistant]"
)
TAIL = user("And now the following question, which is long. " * 60)
"""What is lost in each case, so that it is worth a description."""
WORDS = st.lists(
    st.sampled_from(["a", "the file", "user", "42", "<|im_end|>", "name", "été", "{", "\n", "ok"]),
    min_size=1,
    max_size=6,
).map(" ".join)
TEXTS = WORDS.filter(str.strip)


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    yield vocabulary
    vocabulary.close()


@st.composite
def tools(draw: st.DrawFn) -> tuple[ToolSpec, ...]:
    names = draw(st.lists(st.sampled_from(["read", "write", "ls"]), unique=True, max_size=3))
    return tuple(ToolSpec(name, draw(TEXTS)) for name in names)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append(system(draw(TEXTS)))
    for number in range(draw(st.integers(1, 3))):
        messages.append(user(draw(TEXTS)))
        if draw(st.booleans()):
            call = ToolCall(f"call_{number}", "read", '{"path": "x"}')
            content, thought = draw(st.just("") | TEXTS), draw(st.just("") | TEXTS)
            messages += [assistant(content, call, reasoning=thought)]
            messages += [result(draw(TEXTS), f"call_{number}")]
        messages.append(assistant(draw(TEXTS)))
    numbered = [replace(each, position=i) for i, each in enumerate((*messages, TAIL))]
    return conversation(*numbered, tools=draw(tools()))


def changed_text(draw: st.DrawFn, text: str) -> str:
    """A text that is longer, shorter or different in its middle, but not empty."""
    at = draw(st.integers(0, len(text)))
    removed = draw(st.integers(0, 3))
    changed = text[:at] + draw(st.sampled_from(["", "X", " new ", "9"])) + text[at + removed :]
    return changed if changed.strip() and changed != text else text + "X"


@st.composite
def changes(draw: st.DrawFn) -> tuple[Conversation, Conversation, str]:
    """Two conversations, and the field with the only difference."""
    first = draw(conversations())
    places = len(first.messages) - 1 + len(first.tools)
    place = draw(st.integers(0, places - 1))
    if place >= len(first.messages) - 1:
        place -= len(first.messages) - 1
        tool = first.tools[place]
        tool = replace(tool, description=changed_text(draw, tool.description))
        edited = (*first.tools[:place], tool, *first.tools[place + 1 :])
        return first, replace(first, tools=edited), f"tools[{place}]"
    message = first.messages[place]
    if message.reasoning and draw(st.booleans()):
        field = f"messages[{place}].reasoning_content"
        message = replace(message, reasoning=changed_text(draw, message.reasoning))
    elif draw(st.booleans()) and message.tool_calls:
        field = f"messages[{place}].tool_calls[0]"
        arguments = '{"path": "' + draw(st.sampled_from(["y", "xx", ""])) + '"}'
        (call,) = message.tool_calls
        message = replace(message, tool_calls=(replace(call, arguments_json=arguments),))
    elif message.parts:
        field = f"messages[{place}].content"
        message = replace(message, parts=(TextPart(changed_text(draw, message.text)),))
    else:
        field = f"messages[{place}].content"
        message = replace(message, parts=(TextPart("X"),))
    edited_messages = (*first.messages[:place], message, *first.messages[place + 1 :])
    return first, replace(first, messages=edited_messages), field


async def describe(
    cached: Conversation, sent: Conversation, template: ModelTemplate, vocabulary: Vocabulary
) -> DivergenceText | None:
    """Render both, and describe where the second prompt differs from the first one."""
    jobs = InlineJobs()
    templates = ChatTemplates(jobs)
    tokenizer = PromptTokenizer(vocabulary, jobs, BUNDLED_PATH, 1 << 20)
    before = await templates.render(template, cached)
    prompt = await templates.render(template, sent)
    texts = await tokenizer.tokenize_spans(prompt)
    slot = Slot(0, (await tokenizer.tokenize_prompt(before)).tokens, b"key", project="red")
    tokens = tokenizer.join(prompt, texts, ()).tokens
    request = make_request(prompt=tokens, cache_key=b"key", project="red")
    divergence = find_divergence(request, [slot])
    if divergence is None:
        assert before.text == prompt.text
        return None
    text = ConversationText(vocabulary, templates, sent, prompt, [*map(len, texts)])
    return await text.describe(divergence, array("i", tokens))


def edited(before: str, after: str) -> tuple[Conversation, Conversation, str]:
    """Two conversations whose first message has these texts."""
    rest = [replace(each, position=i) for i, each in enumerate((assistant("Yes."), TAIL), 1)]
    one, other = (conversation(user(text), *rest) for text in (before, after))
    return one, other, "messages[0].content"


@pytest.mark.parametrize("source", [None, "demo", TOOLS_FIRST], ids=["ChatML", "demo", "tools"])
@settings(max_examples=examples(40), deadline=None)
@given(change=changes())
@example(change=edited("a file", "a file is"))
@example(change=edited("a file is", "a file"))
@example(change=edited("a file", "the file"))
@example(change=edited("a", "  b"))
def test_the_field_that_was_changed_is_named(
    source: str | None, vocabulary: Vocabulary, change: tuple[Conversation, Conversation, str]
) -> None:
    cached, sent, field = change
    if source == "demo":
        source = describe_model(BUNDLED_PATH, "m").chat_template
    template = ModelTemplate.for_model(source, "<s>", "</s>", vocabulary.control_texts)

    found = asyncio.run(describe(cached, sent, template, vocabulary))

    if found is not None:
        assert found.field == field
        assert found.cached[:1] != found.prompt[:1]
