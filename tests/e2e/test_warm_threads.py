"""A thread's runs compute their new turns alone, also after its place in memory was taken and the
engine was started anew; a deleted thread leaves nothing on the disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from svc_kit.auth.authenticator import ServiceToken
from tests.support.archives import ROOM, Caller
from tests.support.rpc import connect
from tests.support.sdk import WEATHER
from tests.support.services import MODEL, Corral, corral_up, wait_until_serving

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the SDK's word on Assistants
]

QUESTIONS = (
    "What is the capital of France?",
    "What is the weather in Paris?",
    "What is the capital of Italy?",
    "What is 2 + 2?",
    "What is the capital of Spain?",
)
NEW_TOKENS = 40  # of a question, or of one, a call and what the function says
DROP = "/corral.inference.v1.EngineService/DropSnapshots"


class Cost(NamedTuple):
    """The tokens of a run, over all its turns."""

    prompt: int
    cached: int
    answer: int

    @property
    def computed(self) -> int:
        """Those of the prompts that were not there already."""
        return self.prompt - self.cached

    @property
    def left(self) -> int:
        """Of a run of one turn: what it left computed, which is all but the last token."""
        return self.prompt + self.answer - 1


@dataclass(frozen=True)
class Talk:
    """A thread and its assistant."""

    client: OpenAI
    thread: str
    assistant: str

    @classmethod
    def begin(cls, corral: Corral) -> "Talk":
        """A thread without messages."""
        client = OpenAI(base_url=corral.api, api_key="unused", max_retries=0)
        tools: Any = [WEATHER]
        assistant = client.beta.assistants.create(model=MODEL, temperature=0, tools=tools)
        return cls(client, client.beta.threads.create().id, assistant.id)

    def ask(self, question: str) -> Cost:
        """A run, with an answer of its function where it is called."""
        threads = self.client.beta.threads
        threads.messages.create(self.thread, role="user", content=question)
        run = threads.runs.create_and_poll(thread_id=self.thread, assistant_id=self.assistant)
        if run.required_action is not None:
            calls = run.required_action.submit_tool_outputs.tool_calls
            run = threads.runs.submit_tool_outputs_and_poll(
                run_id=run.id,
                thread_id=self.thread,
                tool_outputs=[{"tool_call_id": each.id, "output": "sunny"} for each in calls],
            )
        usage: Any = run.usage
        cached = usage.prompt_token_details["cached_tokens"]
        return Cost(usage.prompt_tokens, cached, usage.completion_tokens)


@pytest.mark.timeout(90)  # an engine that is started twice
async def test_a_thread_resumes_warm(tmp_path: Path) -> None:
    """Each of five runs, one with a function call, computes what is new; so does the one after the
    thread was evicted and the engine killed. Its file goes with the thread."""
    with corral_up(tmp_path, inference=ROOM) as corral:
        archive = tmp_path / "data" / "snapshots" / "archive"
        talk = Talk.begin(corral)
        async with connect(corral.target) as rpc:
            caller = Caller(rpc, ServiceToken.read(tmp_path / "data" / "service-token").secret)
            await caller.until_known()
            costs = [talk.ask(question) for question in QUESTIONS]
            await caller.evict()
            archived = list(archive.glob("*.snapshot"))
            await caller.kill_engine()
            wait_until_serving(corral.target)
            costs.append(talk.ask("What is the capital of Norway?"))
            mark = corral.program.bookmark()
            talk.client.beta.threads.delete(talk.thread)
            await corral.program.line("call ended", after=mark, method=DROP)
            await caller.evict()  # what the slot still has of it is nobody's
            left = list(archive.glob("*.snapshot"))

    assert [cost.computed <= NEW_TOKENS for cost in costs] == [False, *[True] * 5]
    of_one_turn = costs[2:]  # behind the function call
    assert [one.cached for one in of_one_turn[1:]] == [one.left for one in of_one_turn[:-1]]
    assert len(archived) == 1
    assert left == []
