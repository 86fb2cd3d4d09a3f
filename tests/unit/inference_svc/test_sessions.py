"""The record of requests that have ended: sessions of a project, bounded by number and age."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from corral.inference.v1 import inference_service_pb2 as service_pb
from corral.inference.v1 import session_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from inference_svc.chat.conversation import Message, Role, TextPart
from inference_svc.chat.divergence_text import PLACES, ConversationText, PromptText
from inference_svc.sessions import (
    MAX_AGE,
    EndedRequest,
    SessionKey,
    SessionLog,
    Sessions,
    to_sessions,
)
from inference_svc.usage import UsageKey
from svc_kit.metrics import EngineMetrics
from tests.support.conversations import conversation

NOW = datetime(2026, 11, 30, 5, 0, tzinfo=UTC)
BATCH, NORMAL = 1, 2


@dataclass
class Record:
    """A log of at most `max_turns`, and its clock."""

    max_turns: int = 100
    now: datetime = NOW
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        metrics = EngineMetrics(self.registry)
        self.log = SessionLog(metrics.divergences, max_turns=self.max_turns, clock=lambda: self.now)

    def add(
        self,
        request_id: str,
        session: str = "s1",
        project: str = "red",
        *,
        priority: int = NORMAL,
        usage: dict[str, object] | None = None,
        place: str = "",
    ) -> None:
        """Add a request that ends a second after the last one."""
        self.now += timedelta(seconds=1)
        turn = pb.SessionTurn(request_id=request_id, usage=usage)
        key, usage_key = SessionKey(session, "mine"), UsageKey(project, "key_1", "demo")
        self.log.add(EndedRequest(key, usage_key, priority, turn, place))

    def sessions(self, project: str | None = None, session_id: str = "") -> Sessions:
        requests = self.log.requests(project=project, session_id=session_id)
        return to_sessions(requests, keep_turns=bool(session_id))

    def turns(self, project: str | None = None) -> dict[str, list[str]]:
        """The ids of requests by session."""
        sessions = self.sessions(project)
        found = {}
        for key in sorted(sessions):
            session_id = sessions[key].session_id
            (session,) = self.sessions(project, session_id).values()
            found[session_id] = [each.request_id for each in session.turns]
        return found


def test_a_session_has_the_sums_of_its_turns() -> None:
    """Its turns are listed with it alone."""
    record = Record()
    record.add("r1", usage={"prompt_tokens": 10, "completion_tokens": 3})
    record.add("r2", "s2", usage={"prompt_tokens": 1})
    broken = {"token_index": 4, "lost_tokens": 300, "field": "tools[0]"}
    used = {"prompt_tokens": 20, "cached_tokens": 8, "completion_tokens": 5, "divergence": broken}
    record.add("r3", usage=used, place="tools")
    summed, other = (each for _, each in sorted(record.sessions().items()))
    (whole,) = record.sessions(session_id="s1").values()

    expected = pb.Session(
        session_id="s1",
        name="mine",
        project="red",
        model="demo",
        num_turns=2,
        num_divergences=1,
        prompt_tokens=30,
        cached_tokens=8,
        completion_tokens=8,
    )
    expected.end_time.FromDatetime(NOW + timedelta(seconds=3))
    assert summed == expected
    assert other.session_id == "s2"
    assert [each.request_id for each in whole.turns] == ["r1", "r3"]
    assert whole.turns[1].usage.divergence.field == "tools[0]"
    labels = {"model": "demo", "place": "tools"}
    assert record.registry.get_sample_value("corral_prefix_divergences_total", labels) == 1


def test_a_project_sees_its_own_sessions_only() -> None:
    record = Record()
    record.add("r1", "s1", "red")
    record.add("r2", "s2", "blue")

    assert record.turns("red") == {"s1": ["r1"]}
    assert record.turns() == {"s2": ["r2"], "s1": ["r1"]}
    assert record.sessions("red", "s2") == {}


def test_requests_of_yesterday_are_forgotten() -> None:
    record = Record()
    record.add("r1")
    record.now += MAX_AGE - timedelta(seconds=1)
    record.add("r2")
    record.now += timedelta(seconds=1)

    assert record.turns() == {"s1": ["r2"]}


def test_neither_another_project_nor_a_batch_displaces_a_session() -> None:
    record = Record(max_turns=4)
    record.add("r1", "s1", "red")
    for number in range(9):
        record.add(f"b{number}", "s2", "blue")
        record.add(f"l{number}", "s3", "red", priority=BATCH)

    assert record.turns() == {"s3": ["l7", "l8"], "s2": ["b8"], "s1": ["r1"]}


OWNERS = st.tuples(st.sampled_from(["red", "blue", "green"]), st.sampled_from([BATCH, NORMAL]))


@given(st.lists(OWNERS, max_size=40), st.integers(1, 8))
def test_a_project_and_priority_keeps_its_part_whatever_others_do(
    owners: list[tuple[str, int]], max_turns: int
) -> None:
    """Of each the newest ones are there: all, or at least as many as the others have, less one."""
    record = Record(max_turns)
    for number, (project, priority) in enumerate(owners):
        record.add(str(number), f"{project} {priority}", project, priority=priority)
    kept, sent = record.turns(), Counter(owners)

    assert sum(map(len, kept.values())) == min(max_turns, len(owners))
    most = max(map(len, kept.values()), default=0)
    for owner, num_sent in sent.items():
        ids = [str(number) for number, each in enumerate(owners) if each == owner]
        num_kept = len(kept.get(f"{owner[0]} {owner[1]}", []))
        assert kept.get(f"{owner[0]} {owner[1]}", []) == ids[num_sent - num_kept :]
        assert num_kept == num_sent or num_kept >= most - 1


def test_the_session_that_a_caller_names_has_this_name() -> None:
    """Others of the same begin have the same id; another project, model or begin has another."""

    def key(text: str, project: str = "red", **cache: str) -> SessionKey:
        options = {"cache": cache}
        return SessionKey.of(service_pb.GenerateRequest(text=text, options=options), project)

    begin = "a" * 2000
    assert key(begin) == key(f"{begin} and more")
    assert len({key("a").id, key("b").id, key("a", "blue").id, key("a", affinity="x").id}) == 4
    assert key("a", affinity="x") == key("b", affinity="x")
    assert key("a", affinity="x").name == "x"
    assert key("a", affinity="x", keep_for="thread_1").name == "thread_1"


def test_the_place_of_a_field_is_the_role_or_kind_of_its_text() -> None:
    roles = [Role.DEVELOPER, Role.USER, Role.ASSISTANT, Role.TOOL]
    messages = [
        Message(role, (TextPart("x"),), position=number) for number, role in enumerate(roles)
    ]
    text = ConversationText(None, None, conversation(*messages), None, [])  # type: ignore[arg-type]
    places = {
        "messages[0].content": "system",
        "messages[1].content": "user",
        "messages[2].content": "assistant",
        "messages[3].content": "tool",
        "messages[2].reasoning_content": "reasoning_content",
        "messages[2].tool_calls[1]": "tool_calls",
        "tools[3]": "tools",
        "": "unknown",
        "messages[9].content": "unknown",
    }

    assert {each: text.find_place(each) for each in places} == places
    assert {*places.values(), PromptText(None).find_place("prompt")} == {*PLACES}  # type: ignore[arg-type]
