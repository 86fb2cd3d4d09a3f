"""Tool-call formats: detected from the template, or set by the operator."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.metadata import describe_model
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.gguf_patch import copy_with_control_tokens, copy_with_template
from tests.support.rpc import Rpc, make_chat, user
from tests.support.services import Inference, run_inference, start

pytestmark = pytest.mark.e2e
OTHERS = ("qwen-coder", "gemma", "pythonic", "harmony")
"""Models that are named after formats which the model was not trained for."""


def write_misleading_model(folder: Path) -> Path:
    """Write the demo model with control tokens as markers and a template like Mistral's."""
    template = describe_model(BUNDLED_PATH, "demo").chat_template or ""
    named = copy_with_template(BUNDLED_PATH, folder / "named.gguf", "{# [TOOL_CALLS] #}" + template)
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    tokens = vocabulary.tokenize("<tool_call></tool_call>", add_special=False, parse_special=True)
    vocabulary.close()
    assert len(tokens) == 2
    return copy_with_control_tokens(named, folder / "misleading.gguf", tokens)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inference]:
    """Serve the model under several names with different formats."""
    folder = tmp_path_factory.mktemp("formats")
    model = write_misleading_model(folder)
    names = ("alone", "corrected", "silenced", "any-json", *OTHERS)
    settings = {
        "models": [f"{name}={model}" for name in names],
        "turn_formats": {
            "corrected": {"tool_calls": "hermes"},
            "silenced": {"tool_calls": "off", "reasoning": "off"},
            "any-json": {"tool_calls": "json"},
            **{name: {"tool_calls": name} for name in OTHERS},
        },
        "engine.context_tokens": 1024,
    }
    with run_inference(folder, settings) as inference:
        yield inference


async def ask(
    rpc: Rpc, model: str, mode: chat_pb2.ToolChoice.Mode = chat_pb2.ToolChoice.MODE_AUTO
) -> tuple[str, str]:
    request = make_chat(user("What is the weather in Paris?"), sampling={"temperature": 0})
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
async def test_the_format_of_a_model_is_reported(
    rpc: Rpc, model: str, tool_calls: str, reasoning: str
) -> None:
    """The detected one, or that of the operator."""
    turn_format = (await rpc.inference.GetModel(pb.GetModelRequest(model=model))).model.turn_format

    assert (turn_format.tool_calls, turn_format.reasoning) == (tool_calls, reasoning)


async def test_a_misleading_template_leaves_calls_in_the_content(rpc: Rpc) -> None:
    """The markers are control tokens without meaning in the detected format and removed."""
    content, arguments = await ask(rpc, "alone")

    assert '{"name": "get_weather", "arguments": {"city": "Paris"}}' in content
    assert "<tool_call>" not in content
    assert arguments == ""


@pytest.mark.parametrize("model", ["corrected", "any-json"])
async def test_calls_are_parsed_with_the_format_of_the_operator(rpc: Rpc, model: str) -> None:
    """The parser gets the markers although they are control tokens."""
    content, arguments = await ask(rpc, model)

    assert (content, arguments) == ("", '{"city": "Paris"}')


@pytest.mark.parametrize("model", ["alone", "corrected", *OTHERS])
async def test_a_forced_call_is_written_and_parsed_in_the_models_format(
    rpc: Rpc, model: str
) -> None:
    """The formats of several families, with the same model."""
    content, arguments = await ask(rpc, model, chat_pb2.ToolChoice.MODE_REQUIRED)

    assert content == ""
    assert arguments.startswith('{"city": "')  # the model may not end a string without quotes


def test_a_format_for_an_unknown_model_stops_the_start(tmp_path: Path) -> None:
    """Otherwise a misspelled name would be ignored."""
    settings = {"listen": "127.0.0.1:0", "turn_formats": {"demo-chatt": {"tool_calls": "json"}}}
    with start(tmp_path, "serve", "inference", inference=settings) as program:
        line = program.wait_for_line(r"turn_formats .*: no model is called .*")[0]

    assert re.search(r"'demo-chatt'; there are demo-chat", line)
