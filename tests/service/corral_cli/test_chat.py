"""`corral chat` against a gRPC server with scripted answers."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import pytest
from click.testing import CliRunner, Result
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2, model_pb2
from corral.inference.v1 import inference_service_pb2_grpc as stubs

from corral_cli.chat import Conversation, chat, introduction


@dataclass
class ScriptedModel(stubs.InferenceServiceServicer):
    """Answers every request with `words`, and records the requests."""

    words: list[str] = field(default_factory=lambda: ["Hel", "lo"])
    reason: generation_pb2.FinishReason = generation_pb2.FINISH_REASON_STOP
    failure: grpc.StatusCode | None = None
    requests: list[inference_service_pb2.ChatRequest] = field(default_factory=list)

    def GetModel(
        self,
        request: inference_service_pb2.GetModelRequest,
        context: grpc.ServicerContext,
    ) -> inference_service_pb2.GetModelResponse:
        return inference_service_pb2.GetModelResponse(
            model=model_pb2.Model(
                name=request.model or "demo",
                num_parameters=4_066_560,
                resolved_limits=model_pb2.ModelLimits(context_tokens=2048),
            )
        )

    def Chat(
        self,
        request: inference_service_pb2.ChatRequest,
        context: grpc.ServicerContext,
    ) -> Iterator[inference_service_pb2.ChatResponse]:
        """Stream the words, one event each."""
        self.requests.append(request)
        for word in self.words:
            yield inference_service_pb2.ChatResponse(
                delta=inference_service_pb2.ChatDelta(content=word)
            )
        if self.failure:
            context.abort(self.failure, "the model is gone")
        yield inference_service_pb2.ChatResponse(
            finished=generation_pb2.ChoiceFinished(reason=self.reason, completion_tokens=2)
        )


@pytest.fixture
def servicer() -> ScriptedModel:
    return ScriptedModel()


def type_lines(target: str, *lines: str, options: tuple[str, ...] = ()) -> Result:
    text = "".join(f"{line}\n" for line in lines)
    return CliRunner().invoke(chat, ["--target", target, *options], input=text)


def second_prompt(servicer: ScriptedModel) -> list[tuple[int, str]]:
    messages = servicer.requests[1].conversation.messages
    return [(each.role, "".join(part.text for part in each.parts)) for each in messages]


def test_an_answer_is_streamed_to_the_screen(target: str) -> None:
    """After a line that describes the model."""
    result = type_lines(target, "Hi!")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "demo: 4 million parameters, 2,048 tokens of context. /help lists the commands.",
        "Hello",
    ]


def test_a_request_has_the_earlier_turns(target: str, servicer: ScriptedModel) -> None:
    type_lines(target, "one", "two")

    assert second_prompt(servicer) == [
        (chat_pb2.ROLE_USER, "one"),
        (chat_pb2.ROLE_ASSISTANT, "Hello"),
        (chat_pb2.ROLE_USER, "two"),
    ]


def test_reset_removes_the_turns_and_keeps_the_system_message(
    target: str, servicer: ScriptedModel
) -> None:
    """The next request has the system message and one turn."""
    type_lines(target, "one", "/reset", "two", options=("--system", "Be brief."))

    assert second_prompt(servicer) == [
        (chat_pb2.ROLE_SYSTEM, "Be brief."),
        (chat_pb2.ROLE_USER, "two"),
    ]


def test_the_system_message_can_be_changed(target: str, servicer: ScriptedModel) -> None:
    """`/system` sets it and clears the conversation."""
    type_lines(target, "one", "/system Speak like a pirate.", "two")

    assert second_prompt(servicer) == [
        (chat_pb2.ROLE_SYSTEM, "Speak like a pirate."),
        (chat_pb2.ROLE_USER, "two"),
    ]


def test_options_reach_the_request(target: str, servicer: ScriptedModel) -> None:
    """Options that were not given stay unset, so that the model's defaults apply."""
    type_lines(
        target, "one", options=("--model", "polly", "--temperature", "0", "--max-tokens", "9")
    )
    type_lines(target, "one")

    assert servicer.requests[0].model == "polly"
    assert servicer.requests[0].options.sampling.temperature == 0
    assert servicer.requests[0].options.stopping.max_tokens == 9
    assert not servicer.requests[1].options.HasField("sampling")


def test_commands_are_not_sent_to_the_model(target: str, servicer: ScriptedModel) -> None:
    """Neither are unknown commands; `/exit` ends the program."""
    result = type_lines(target, "/help", "/bogus", "", "/exit", "never sent")

    assert "/reset" in result.stdout
    assert "/bogus is not a command" in result.stdout
    assert servicer.requests == []


def test_a_truncated_answer_is_marked(target: str, servicer: ScriptedModel) -> None:
    servicer.reason = generation_pb2.FINISH_REASON_LENGTH

    assert "(cut off after 2 tokens)" in type_lines(target, "Hi!").stdout


def test_a_failed_request_is_reported_and_the_chat_continues(
    target: str, servicer: ScriptedModel
) -> None:
    """The failed message is removed from the conversation."""
    servicer.words, servicer.failure = [], grpc.StatusCode.RESOURCE_EXHAUSTED
    first = type_lines(target, "one")
    servicer.words, servicer.failure = ["fine"], None
    second = type_lines(target, "two")

    assert first.exit_code == 0
    assert first.stderr.strip()
    assert "fine" in second.stdout


def test_an_unreachable_server_is_reported_with_a_remedy() -> None:
    result = type_lines("127.0.0.1:1")

    assert result.exit_code == 1
    assert "no server answers at 127.0.0.1:1" in result.stderr
    assert "corral up" in result.stderr


def test_the_bundled_model_is_introduced_as_a_demo() -> None:
    """With the command that serves a real model."""
    text = introduction(model_pb2.Model(name="demo-chat", num_parameters=4_066_560))

    assert "tiny demo model" in text
    assert "corral up --model hf:" in text


def test_a_conversation_starts_with_its_system_message() -> None:
    """Without one it is empty."""
    assert list(Conversation("m").request().conversation.messages) == []
    assert len(Conversation("m", system="Be brief.").request().conversation.messages) == 1


def test_a_model_that_is_not_loaded_is_introduced_without_its_context() -> None:
    """The size is not known before it is loaded."""
    assert "loaded on the first message" in introduction(model_pb2.Model(name="small"))
