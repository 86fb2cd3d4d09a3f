"""`corral chat` against a real gRPC server whose answers are written down beforehand."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest
from click.testing import CliRunner, Result
from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2, model_pb2
from corral.inference.v1 import inference_service_pb2_grpc as stubs

from corral_cli.chat import Conversation, chat, introduction


@dataclass
class Parrot(stubs.InferenceServiceServicer):
    """Answers every conversation with the words it was told to say, and keeps the requests."""

    words: list[str] = field(default_factory=lambda: ["Hel", "lo"])
    reason: generation_pb2.FinishReason = generation_pb2.FINISH_REASON_STOP
    failure: grpc.StatusCode | None = None
    requests: list[inference_service_pb2.ChatRequest] = field(default_factory=list)

    def GetModel(
        self,
        request: inference_service_pb2.GetModelRequest,
        context: grpc.ServicerContext,
    ) -> inference_service_pb2.GetModelResponse:
        """One model, whatever it is called."""
        return inference_service_pb2.GetModelResponse(
            model=model_pb2.Model(
                name=request.model or "parrot",
                num_parameters=4_066_560,
                resolved_limits=model_pb2.ModelLimits(context_tokens=2048),
            )
        )

    def Chat(
        self,
        request: inference_service_pb2.ChatRequest,
        context: grpc.ServicerContext,
    ) -> Iterator[inference_service_pb2.ChatResponse]:
        """The words, one event each."""
        self.requests.append(request)
        for word in self.words:
            yield inference_service_pb2.ChatResponse(
                delta=inference_service_pb2.ChatDelta(content=word)
            )
        if self.failure:
            context.abort(self.failure, "the parrot is gone")
        yield inference_service_pb2.ChatResponse(
            finished=generation_pb2.ChoiceFinished(reason=self.reason, completion_tokens=2)
        )


@pytest.fixture
def parrot() -> Parrot:
    """The servicer, to be told what to say."""
    return Parrot()


@pytest.fixture
def target(parrot: Parrot) -> Iterator[str]:
    """The address of a server with the parrot."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    stubs.add_InferenceServiceServicer_to_server(parrot, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


def talk(target: str, *lines: str, options: tuple[str, ...] = ()) -> Result:
    """Type the lines into `corral chat`."""
    text = "".join(f"{line}\n" for line in lines)
    return CliRunner().invoke(chat, ["--target", target, *options], input=text)


def said(message: chat_pb2.ChatMessage) -> tuple[int, str]:
    """A turn as role and text."""
    return message.role, "".join(part.text for part in message.parts)


def test_an_answer_is_streamed_to_the_screen(target: str) -> None:
    """The pieces join to the answer, after a line that says who talks."""
    result = talk(target, "Hi!")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "parrot: 4 million parameters, 2,048 tokens of context. /help lists the commands.",
        "Hello",
    ]


def test_earlier_turns_travel_with_the_next_question(target: str, parrot: Parrot) -> None:
    """The model sees the whole conversation each time."""
    talk(target, "one", "two")

    assert [said(message) for message in parrot.requests[1].conversation.messages] == [
        (chat_pb2.ROLE_USER, "one"),
        (chat_pb2.ROLE_ASSISTANT, "Hello"),
        (chat_pb2.ROLE_USER, "two"),
    ]


def test_reset_forgets_the_turns_and_keeps_the_system_message(target: str, parrot: Parrot) -> None:
    """After /reset the next question stands alone, under the same system message."""
    talk(target, "one", "/reset", "two", options=("--system", "Be brief."))

    assert [said(message) for message in parrot.requests[1].conversation.messages] == [
        (chat_pb2.ROLE_SYSTEM, "Be brief."),
        (chat_pb2.ROLE_USER, "two"),
    ]


def test_the_system_message_can_be_changed(target: str, parrot: Parrot) -> None:
    """/system sets it and starts anew."""
    talk(target, "one", "/system Speak like a pirate.", "two")

    assert [said(message) for message in parrot.requests[1].conversation.messages] == [
        (chat_pb2.ROLE_SYSTEM, "Speak like a pirate."),
        (chat_pb2.ROLE_USER, "two"),
    ]


def test_options_reach_the_request(target: str, parrot: Parrot) -> None:
    """What was not given stays unset, so that the model's defaults hold."""
    talk(target, "one", options=("--model", "polly", "--temperature", "0", "--max-tokens", "9"))
    talk(target, "one")

    assert parrot.requests[0].model == "polly"
    assert parrot.requests[0].options.sampling.temperature == 0
    assert parrot.requests[0].options.stopping.max_tokens == 9
    assert not parrot.requests[1].options.HasField("sampling")


def test_commands_are_not_sent(target: str, parrot: Parrot) -> None:
    """/help and mistyped commands are answered here; /exit ends the talk."""
    result = talk(target, "/help", "/bogus", "", "/exit", "never sent")

    assert "/reset" in result.stdout
    assert "/bogus is no command" in result.stdout
    assert parrot.requests == []


def test_an_answer_that_was_cut_off_says_so(target: str, parrot: Parrot) -> None:
    """The reader learns that the model had more to say."""
    parrot.reason = generation_pb2.FINISH_REASON_LENGTH

    assert "(cut off after 2 tokens)" in talk(target, "Hi!").stdout


def test_a_failure_is_a_line_and_the_talk_goes_on(target: str, parrot: Parrot) -> None:
    """A failed question does not stay in the conversation, and the next one is answered."""
    parrot.words, parrot.failure = [], grpc.StatusCode.RESOURCE_EXHAUSTED
    first = talk(target, "one")
    parrot.words, parrot.failure = ["fine"], None
    second = talk(target, "two")

    assert first.exit_code == 0
    assert first.stderr.strip()
    assert "fine" in second.stdout


def test_without_a_server_the_remedy_is_named() -> None:
    """Nothing listens: one line says how to start a server, and the exit code is 1."""
    result = talk("127.0.0.1:1")

    assert result.exit_code == 1
    assert "no server answers at 127.0.0.1:1" in result.stderr
    assert "corral up" in result.stderr


def test_the_bundled_model_introduces_itself() -> None:
    """Nobody should judge Corral by its four-megabyte demo."""
    words = introduction(model_pb2.Model(name="demo-chat", num_parameters=4_066_560))

    assert "tiny demo model" in words
    assert "corral up --model hf:" in words


def test_a_conversation_starts_with_its_system_message() -> None:
    """Without one there is no empty turn in its place."""
    assert list(Conversation("m").request().conversation.messages) == []
    assert len(Conversation("m", system="Be brief.").request().conversation.messages) == 1


def test_a_model_that_is_not_loaded_says_when_it_will_be() -> None:
    """Its context is not known before."""
    assert "loaded by the first question" in introduction(model_pb2.Model(name="small"))
