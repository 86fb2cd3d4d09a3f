"""The disk prefix cache for runs: they compute only new turns, also after eviction and a restart of
the engine. A deleted thread leaves no files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from inference_svc.engine.kv_cache.allocator import MIN_SAVED_TOKENS
from svc_kit.auth.authenticator import ServiceToken
from tests.support.archives import ROOM, Caller
from tests.support.rpc import connect
from tests.support.sdk import WEATHER
from tests.support.services import MODEL, Corral, corral_up, wait_until_serving

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the SDK deprecates Assistants
]

QUESTIONS = (
    "What is the capital of France?",
    "What is the weather in Paris?",
    "What is the capital of Italy?",
    "What is 2 + 2?",
    "What is the capital of Spain?",
)
NEW_TOKENS = 40  # of a question, or of a question, a call and its output
DROP = "/corral.inference.v1.EngineService/DropSnapshots"


class Cost(NamedTuple):
    """Token counts of a run, summed over its turns."""

    prompt: int
    cached: int
    answer: int

    @property
    def computed(self) -> int:
        """Prompt tokens that were not cached."""
        return self.prompt - self.cached

    @property
    def num_cached_after(self) -> int:
        """Tokens in the cache after a run of one turn: all but the last one."""
        return self.prompt + self.answer - 1


@dataclass(frozen=True)
class ThreadClient:
    client: OpenAI
    thread: str
    assistant: str

    @classmethod
    def create(cls, corral: Corral) -> "ThreadClient":
        client = OpenAI(base_url=corral.api, api_key="unused", max_retries=0)
        tools: Any = [WEATHER]
        assistant = client.beta.assistants.create(model=MODEL, temperature=0, tools=tools)
        return cls(client, client.beta.threads.create().id, assistant.id)

    def ask(self, question: str) -> Cost:
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


async def test_runs_reuse_the_prefix_of_their_thread(tmp_path: Path) -> None:
    """Each of five runs, one with a function call, and one after eviction and a kill of the engine.
    The file is deleted with the thread."""
    inference = {**ROOM, "snapshots.archive_scope": "stored"}
    with corral_up(tmp_path, inference=inference) as corral:
        archive = tmp_path / "data" / "snapshots" / "archive"
        talk = ThreadClient.create(corral)
        async with connect(corral.target) as rpc:
            caller = Caller(rpc, ServiceToken.read(tmp_path / "data" / "service-token").secret)
            await caller.wait_for_model_digest()
            costs = [talk.ask(question) for question in QUESTIONS]
            await caller.evict()
            archived = list(archive.glob("*.snapshot"))
            await caller.kill_engine()
            wait_until_serving(corral.target)
            costs.append(talk.ask("What is the capital of Norway?"))
            mark = corral.program.bookmark()
            talk.client.beta.threads.delete(talk.thread)
            await corral.program.line("call ended", after=mark, method=DROP)
            await caller.evict()  # so that the slot does not have it
            num_cached_after = list(archive.glob("*.snapshot"))

    restored = costs.pop()
    assert [cost.computed <= NEW_TOKENS for cost in costs] == [False, *[True] * 4]
    assert restored.computed <= NEW_TOKENS + MIN_SAVED_TOKENS  # so few are not written again
    single_turn_costs = costs[2:]  # after the function call
    assert [cost.cached for cost in single_turn_costs[1:]] == [
        cost.num_cached_after for cost in single_turn_costs[:-1]
    ]
    assert len(archived) == 1
    assert num_cached_after == []
