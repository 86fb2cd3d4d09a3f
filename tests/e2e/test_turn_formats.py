"""How a model writes tool calls: told from its template, corrected by its operator, shown to
callers."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.metadata import describe_model
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.gguf_patch import with_control_tokens, with_template
from tests.support.rpc import Rpc, a_chat, connect, user
from tests.support.services import Inference, inference_alone, start

pytestmark = pytest.mark.e2e


def a_misleading_model(folder: Path) -> Path:
    """The demo model, its markers control tokens, with a template that names Mistral's."""
    template = describe_model(BUNDLED_PATH, "demo").chat_template or ""
    named = with_template(BUNDLED_PATH, folder / "named.gguf", "{# [TOOL_CALLS] #}" + template)
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    tokens = vocabulary.tokenize("<tool_call></tool_call>", add_special=False, parse_special=True)
    vocabulary.close()
    assert len(tokens) == 2
    return with_control_tokens(named, folder / "misleading.gguf", tokens)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inference]:
    """The same model under several names, with what an operator says of each."""
    folder = tmp_path_factory.mktemp("formats")
    model = a_misleading_model(folder)
    names = ("alone", "corrected", "silenced", "any-json")
    settings = {
        "models": [f"{name}={model}" for name in names],
        "turn_formats": {
            "corrected": {"tool_calls": "hermes"},
            "silenced": {"tool_calls": "off", "reasoning": "off"},
            "any-json": {"tool_calls": "json"},
        },
        "engine.context_tokens": 1024,
    }
    with inference_alone(folder, settings) as inference:
        yield inference


@pytest.fixture
async def rpc(served: Inference) -> AsyncIterator[Rpc]:
    """A bare gRPC client of it."""
    async with connect(served.target) as connected:
        yield connected


async def ask(
    rpc: Rpc, model: str, mode: chat_pb2.ToolChoice.Mode = chat_pb2.ToolChoice.MODE_AUTO
) -> tuple[str, str]:
    """The content and the arguments that an answer with a tool call becomes."""
    request = a_chat(user("What is the weather in Paris?"), sampling={"temperature": 0})
    request.model = model
    request.conversation.tool_choice.mode = mode
    request.conversation.tools.add(
        name="get_weather",
        description="Get the weather of a city",
        parameters_json='{"type":"object","properties":{"city":{"type":"string"}},'
        '"required":["city"]}',
    )
    content = arguments = ""
    async for response in rpc.inference.Chat(request):
        content += response.delta.content
        arguments += "".join(call.arguments_json for call in response.delta.tool_calls)
    return content, arguments


@pytest.mark.parametrize(
    ("model", "tool_calls", "reasoning"),
    [
        ("alone", "mistral", "think"),
        ("corrected", "hermes", "think"),
        ("silenced", "off", "off"),
        ("any-json", "json", "think"),
    ],
)
async def test_a_model_says_how_it_writes(
    rpc: Rpc, model: str, tool_calls: str, reasoning: str
) -> None:
    """What its template tells, and what the operator says instead."""
    found = (await rpc.inference.GetModel(pb.GetModelRequest(model=model))).model.turn_format

    assert (found.tool_calls, found.reasoning) == (tool_calls, reasoning)


async def test_a_misleading_template_leaves_calls_in_the_content(rpc: Rpc) -> None:
    """The markers are control tokens of no meaning in that notation, so even they are missing."""
    content, arguments = await ask(rpc, "alone")

    assert '{"name": "get_weather", "arguments": {"city": "Paris"}}' in content
    assert "<tool_call>" not in content
    assert arguments == ""


@pytest.mark.parametrize("model", ["corrected", "any-json"])
async def test_an_operators_word_makes_them_calls(rpc: Rpc, model: str) -> None:
    """The markers reach the parser though they are control tokens."""
    content, arguments = await ask(rpc, model)

    assert (content, arguments) == ("", '{"city": "Paris"}')


@pytest.mark.parametrize("model", ["alone", "corrected"])
async def test_an_enforced_call_is_written_and_read_in_the_models_notation(
    rpc: Rpc, model: str
) -> None:
    """The grammar of Mistral's notation and that of Hermes', on the same model."""
    content, arguments = await ask(rpc, model, chat_pb2.ToolChoice.MODE_REQUIRED)

    assert content == ""
    assert set(json.loads(arguments)) == {"city"}


def test_a_format_for_a_model_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    """A name that is spelled wrongly would be ignored in silence otherwise."""
    settings = {"listen": "127.0.0.1:0", "turn_formats": {"demo-chatt": {"tool_calls": "json"}}}
    with start(tmp_path, "serve", "inference", inference=settings) as program:
        line = program.wait_for_line(r"turn_formats: no model is called .*")[0]

    assert re.search(r"'demo-chatt'; there are demo-chat", line)
