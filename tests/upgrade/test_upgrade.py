"""Upgrade of installations of earlier releases that were killed during their work: real processes
of this release on the data folder and the database, SQLite and PostgreSQL.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from corral.control.v1 import (
    file_service_pb2,
    job_service_pb2,
    usage_service_pb2,
    vector_store_service_pb2,
)
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.job_service_pb2_grpc import JobServiceStub
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub

from tests.support.earlier_release import read_client_state, unpack
from tests.support.postgres import create_database, run_test_postgres
from tests.support.processes import PATIENCE_S
from tests.support.sdk_batches import wait_for_batch
from tests.support.services import MODEL, Corral, corral_up, start
from tests.support.upgrade_client import Api, Operator, connect, mask_times, sha256
from tools.upgrade_fixture import INFERENCE, NUM_LINES, QUESTION

pytestmark = pytest.mark.e2e

RELEASES = ("release-0.1", "release-0.2")
"""Each installation is upgraded by `make prove`; `make test` has each release and each database."""
SQLITE, POSTGRES = "sqlite", "postgres"
SHA256_DIGITS = 64
UNFINISHED = ("open", "queued", "waiting", "half")
"""Names of runs, responses and batches that continue once the services run again."""


@dataclass(frozen=True)
class Upgraded:
    """The installation, served by this release."""

    release: str
    corral: Corral
    known: dict[str, Any]
    api: Api
    """A client without a key."""
    data: Path

    @property
    def operator(self) -> Operator:
        return Operator(self.corral, self.data / "service-token")

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        token = (self.data / "service-token").read_text(encoding="utf-8").strip()
        return (("authorization", f"Bearer {token}"),)

    def run(self, name: str) -> str:
        thread_id, run_id = self.known["runs"][name]
        return f"/threads/{thread_id}/runs/{run_id}"

    def response(self, name: str) -> str:
        return f"/responses/{self.known['responses'][name]}"

    def wait_for_store(self) -> Any:
        """The vector store, as soon as none of its files is in progress."""
        store_id = self.known["store"]["id"]
        asked = vector_store_service_pb2.WatchVectorStoreRequest(vector_store_id=store_id)
        with grpc.insecure_channel(self.corral.control) as channel:
            list(VectorStoreServiceStub(channel).WatchVectorStore(asked, timeout=PATIENCE_S))
        return self.api.get(f"/vector_stores/{store_id}")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """An empty PostgreSQL server."""
    with run_test_postgres() as server:
        yield server


def installations() -> Iterator[Any]:
    """A release and a database, in turns for each release; the other combinations are slow."""
    for number, release in enumerate(RELEASES):
        for database in (SQLITE, POSTGRES):
            is_quick = database == (SQLITE, POSTGRES)[number % 2]
            marks = () if is_quick else pytest.mark.slow
            yield pytest.param((release, database), id=f"{release}-{database}", marks=marks)


@pytest.fixture(scope="module", params=installations())
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    """`corral up` on the installation, after `corral db upgrade`."""
    folder = tmp_path_factory.mktemp("upgraded")
    release, database = request.param
    is_postgres = database == POSTGRES
    database_url = create_database(request.getfixturevalue("postgres")) if is_postgres else None
    unpack(release, database, folder / "data", database_url)
    control = {"database_url": database_url} if database_url else {}
    with start(folder, "db", "upgrade", control=control) as command:
        assert command.wait() == 0
    flags = ("--embedding-model", MODEL)
    with (
        corral_up(folder, *flags, inference=INFERENCE, control=control) as corral,
        connect(corral) as api,
    ):
        known = read_client_state(release, database)
        yield Upgraded(release, corral, known, api, folder / "data")


def parse_events(text: str) -> list[tuple[str, Any]]:
    """Parse server-sent events into their names and data, without comments."""
    events = []
    for frame in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in frame.splitlines() if line[:1] != ":")
        if fields:
            data = fields["data"]
            events.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return events


def plain(value: Any) -> Any:
    """Remove times and what frontends report from an object."""
    result = json.loads(mask_times(json.dumps(value)))
    if isinstance(result, dict):
        for name in ("engines", "frontend_count", "ready_frontend_count"):
            result.pop(name, None)
    return result


# ---- ended work


def test_ended_objects_are_unchanged(upgraded: Upgraded) -> None:
    """Every field of every object without unfinished work, in lists and on its own."""
    known, changing = upgraded.known, changing_ids(upgraded.known)
    for path, before in known["objects"].items():
        if any(each in path for each in changing):
            continue
        params = {"limit": 100} if path.count("/") == 1 else {}
        after = upgraded.api.get(path, **params)
        if "data" not in before:
            assert plain(after) == plain(before), path
            continue
        objects = {each["id"]: plain(each) for each in after["data"]}
        for each in before["data"]:
            if each["id"] not in changing:
                assert objects[each["id"]] == plain(each), path


def changing_ids(known: dict[str, Any]) -> set[str]:
    store = known["store"]
    changing = {store["id"], store["late"], store["late_batch"], *store["in_progress"]}
    changing |= {known["responses"]["archived"], *retried_ids(known)}
    for name in UNFINISHED:
        changing.update(known["runs"].get(name, ()))
        changing.add(known["responses"].get(name, known["batches"].get(name, "")))
    changing |= {known["batches"]["queued"], known["conversation"] + "/items"}
    return changing - {""}


def retried_ids(known: dict[str, Any]) -> set[str]:
    """Ids of the run and the response that a test retries, and of the run's thread."""
    dead = {known["dead"][kind]["subject"] for kind in ("run", "response")}
    threads = {path.split("/")[2] for path in known["streams"] if path.split("/")[-1] in dead}
    return dead | {each for each in threads if each.startswith("thread_")}


def test_files_have_the_same_content(upgraded: Upgraded) -> None:
    """All of them, by digest. A page token of the earlier release returns the next page."""
    contents = {
        file_id: sha256(upgraded.api.http.get(f"/v1/files/{file_id}/content").text)
        for file_id in upgraded.known["contents"]
    }
    page = upgraded.known["page"]
    with grpc.insecure_channel(upgraded.corral.control) as channel:
        asked = file_service_pb2.ListFilesRequest(page_size=100, page_token=page["token"])
        rest = [file.id for file in FileServiceStub(channel).ListFiles(asked, timeout=10).files]

    assert contents == upgraded.known["contents"]
    assert rest == page["rest"]


CREATED = re.compile(r'(^data: .*"type": ?"response\.created".*?"status": ?)"in_progress"', re.M)


def as_it_was(upgraded: Upgraded, events: str) -> str:
    """Events of a response as its release wrote them: the status in the first of a response outside
    the background, "in_progress", was "queued" in 0.1.
    """
    if upgraded.release != "release-0.1":
        return events
    return CREATED.sub(r'\1"queued"', events, count=1)


def test_ended_streams_are_replayed(upgraded: Upgraded) -> None:
    """Byte by byte, for runs and responses in every state."""
    # Other tests delete or retry these.
    others = {upgraded.known["responses"]["archived"], *retried_ids(upgraded.known)}
    digests = {
        path: known
        for path, known in upgraded.known["streams"].items()
        if len(known) == SHA256_DIGITS and not others.intersection(path.split("/"))
    }
    replayed = {
        path: sha256(
            mask_times(
                upgraded.api.events(f"{path}/events")
                if "/runs/" in path
                else as_it_was(upgraded, upgraded.api.events(path, stream="true"))
            )
        )
        for path in digests
    }

    assert replayed == digests
    assert len(digests) > 10


def test_keys_have_the_same_access(upgraded: Upgraded) -> None:
    """A key gives access to its project only, an operator's key to operator calls, a revoked key to
    nothing.
    """
    keys, red = upgraded.known["keys"], upgraded.known["red"]
    with connect(upgraded.corral, keys["inference"]["secret"]) as api:
        content = api.http.get(f"/v1/files/{red['file']}/content").text
        foreign = api.http.get(f"/v1/files/{upgraded.known['upload_file']}").status_code
        response = api.get(f"/responses/{red['response']}")["status"]
        same = [repeat(api, each) for each in red["repeatable"]]
    with connect(upgraded.corral, keys["revoked"]["secret"]) as api:
        revoked = api.http.get("/v1/files").status_code
    listed = upgraded.operator.command("keys", "list", "--project", "red")

    assert (content, foreign, response, revoked) == ("Only for reds.\n", 404, "completed", 401)
    assert same == [each["id"] for each in red["repeatable"]]
    assert keys["admin"]["id"] in listed


def test_repeated_requests_return_the_same_object(upgraded: Upgraded) -> None:
    """An idempotency key of the earlier release returns the object that it created."""
    requests = upgraded.known["repeatable"]
    same = {each["path"] + each["key"]: repeat(upgraded.api, each) for each in requests}

    assert same == {each["path"] + each["key"]: each["id"] for each in requests}


def test_another_body_under_a_key_of_this_release_is_refused(upgraded: Upgraded) -> None:
    """Fingerprints are compared for requests made after the upgrade."""
    first = {**upgraded.known["repeatable"][1], "key": "after-the-upgrade"}
    repeat(upgraded.api, first)
    refused = upgraded.api.http.post(
        f"/v1{first['path']}",
        json={**first["json"], "name": "another"},
        headers={"idempotency-key": first["key"]},
    )

    assert refused.is_client_error


def repeat(api: Api, request: dict[str, Any]) -> str:
    """Repeat a request of the earlier release; return the id of the object."""
    headers = {"idempotency-key": request["key"]}
    if "file" in request:
        file = request["file"]
        sent: dict[str, Any] = {
            "data": file["form"],
            "files": {"file": (file["name"], file["content"])},
        }
    else:
        sent = {"json": request["json"]}
    object_id: str = api.request("POST", request["path"], headers=headers, **sent)["id"]
    return object_id


def test_usage_is_still_counted(upgraded: Upgraded) -> None:
    """The sums of each project on the day of its requests."""
    day = datetime.fromisoformat(upgraded.known["made_at"]).replace(hour=0, minute=0, second=0)
    asked = usage_service_pb2.ListUsageRequest(period=usage_service_pb2.ListUsageRequest.PERIOD_DAY)
    asked.start_time.FromDatetime(day)
    asked.end_time.FromDatetime(day + timedelta(days=1))
    with grpc.insecure_channel(upgraded.corral.control) as channel:
        stub = UsageServiceStub(channel)
        sums = stub.ListUsage(asked, metadata=upgraded.credentials, timeout=10).sums
    now = {
        (each.project, each.model): (
            each.counts.requests,
            each.counts.prompt_tokens,
            each.counts.completion_tokens,
        )
        for each in sums
    }
    before = {}
    for line in upgraded.known["usage"].splitlines()[1:]:
        _date, _time, project, model, *counts = line.replace(",", "").split()
        requests, prompt, _cached, completion = map(int, counts[:4])
        before[project, model] = (requests, prompt, completion)

    assert {project for project, _ in before} == {"default", "red"}
    for key, counts in before.items():  # on the same day, more has been added
        assert all(new >= old for new, old in zip(now[key], counts, strict=True)), key


def test_limits_and_the_audit_log_are_kept(upgraded: Upgraded) -> None:
    """What operators set, and what they did."""
    if upgraded.release == "release-0.1":
        pytest.skip("release 0.1 had neither limits nor an audit log")
    limits = json.loads(upgraded.operator.command("limits", "list", "--json"))
    audit = json.loads(upgraded.operator.command("audit", "--json", "--days", "36500"))
    kept = upgraded.known["limits"]

    assert [without_time(each) for each in limits] == [without_time(each) for each in kept]
    assert audit[-len(upgraded.known["audit"]) :] == upgraded.known["audit"]


def without_time(limit: dict[str, Any]) -> dict[str, Any]:
    """A limit without the time of its creation, which `unpack` moves."""
    return {name: value for name, value in limit.items() if name != "create_time"}


# ---- unfinished work


@pytest.mark.parametrize("name", ["open", "queued"])
def test_a_run_continues(upgraded: Upgraded, name: str) -> None:
    """Its stream starts with the events read before the upgrade; its message equals the deltas."""
    path = upgraded.run(name)
    text = upgraded.api.events(f"{path}/events")
    events = parse_events(text)
    deltas = [
        content["text"]["value"]
        for event, data in events
        if event == "thread.message.delta"
        for content in data["delta"]["content"]
    ]
    run = upgraded.api.get(path)
    [message] = upgraded.api.get(
        f"/threads/{run['thread_id']}/messages", run_id=run["id"]
    )["data"]  # fmt: skip
    names = [event for event, _ in events]

    assert mask_times(text).startswith(mask_times(upgraded.known["streams"][path]))
    assert run["status"] == {"open": "incomplete", "queued": "completed"}[name]
    assert names.count("thread.message.created") == names.count(f"thread.run.{run['status']}") == 1
    assert names[-1] == "done"
    assert message["content"][0]["text"]["value"] == "".join(deltas)
    if name == "open":
        assert run["usage"]["completion_tokens"] == run["max_completion_tokens"]


@pytest.mark.parametrize("name", ["open", "queued"])
def test_a_response_continues(upgraded: Upgraded, name: str) -> None:
    """Its stream starts with the events read before the upgrade, sequence numbers have no gaps, and
    its text is that of the deltas.
    """
    path = upgraded.response(name)
    text = upgraded.api.events(path, stream="true")
    events = [data for _, data in parse_events(text) if data != "[DONE]"]
    deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    response = upgraded.api.get(path)
    [item] = response["output"]

    assert mask_times(text).startswith(mask_times(upgraded.known["streams"][path]))
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert response["status"] == {"open": "incomplete", "queued": "completed"}[name]
    assert item["content"][0]["text"] == "".join(deltas)
    if name == "open":
        assert response["usage"]["output_tokens"] == response["max_output_tokens"]
    else:
        items = upgraded.api.get(f"/conversations/{upgraded.known['conversation']}/items")
        assert item["id"] in [each["id"] for each in items["data"]]


def test_a_run_that_waits_for_tool_outputs_continues(upgraded: Upgraded) -> None:
    """Its answer uses the submitted outputs."""
    path = upgraded.run("waiting")
    before = upgraded.api.get(path)["status"]
    outputs = upgraded.known["calls"]
    upgraded.api.post(f"{path}/submit_tool_outputs", tool_outputs=outputs)
    upgraded.api.events(f"{path}/events")
    run = upgraded.api.get(path)
    messages = upgraded.api.get(f"/threads/{run['thread_id']}/messages", run_id=run["id"])

    assert (before, run["status"]) == ("requires_action", "completed")
    assert "18" in messages["data"][0]["content"][0]["text"]["value"]


@pytest.mark.parametrize(("name", "num_lines"), [("half", NUM_LINES), ("queued", 3)])
def test_a_batch_continues(upgraded: Upgraded, name: str, num_lines: int) -> None:
    """Every line is answered exactly once, also in a batch that was half done."""
    batch_id = upgraded.known["batches"][name]
    wait_for_batch(upgraded.corral, batch_id)
    batch = upgraded.api.get(f"/batches/{batch_id}")
    content = upgraded.api.http.get(f"/v1/files/{batch['output_file_id']}/content").text
    lines = [json.loads(line) for line in content.splitlines()]

    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": num_lines, "completed": num_lines, "failed": 0}
    assert sorted(line["custom_id"] for line in lines) == [
        f"line-{number:02}" for number in range(num_lines)
    ]
    assert all(line["response"]["body"]["usage"]["completion_tokens"] == 40 for line in lines)


def test_a_pending_upload_is_completed(upgraded: Upgraded) -> None:
    """From a part added before the upgrade and one added after it."""
    upload = upgraded.known["upload"]
    path = f"/uploads/{upload['id']}"
    part = upgraded.api.request("POST", f"{path}/parts", files={"data": ("p", b"world")})
    done = upgraded.api.post(f"{path}/complete", part_ids=[upload["part"], part["id"]])
    content = upgraded.api.http.get(f"/v1/files/{done['file']['id']}/content").text

    assert (done["status"], content) == ("completed", "helloworld")


def test_vector_stores_are_searched(upgraded: Upgraded) -> None:
    """Files ingested before the upgrade, and those that were in progress."""
    store = upgraded.wait_for_store()
    found = {
        query: upgraded.api.post(f"/vector_stores/{store['id']}/search", query=query)["data"][0]
        for query in ("Zorbo the fox", "the moon pulls the sea", "bees dance", "trains on rails")
    }
    paths = [
        f"/vector_stores/{store['id']}/file_batches/{upgraded.known['store'][name]}"
        for name in ("batch", "late_batch")
    ]

    assert [hit["filename"] for hit in found.values()] == [
        "zorbo.txt",
        "tides.txt",
        "bees.txt",
        "rails.txt",
    ]
    assert found["Zorbo the fox"]["attributes"] == {"year": 2024}
    assert store["file_counts"]["in_progress"] == 0
    assert [upgraded.api.get(path)["status"] for path in paths] == ["completed"] * 2


def test_adapters_are_loaded(upgraded: Upgraded) -> None:
    """Adapters that were ready, one in progress and one of another project load; an incompatible
    one fails.
    """
    states = {
        name: upgraded.api.get(f"/adapters/{name}", wait=20)["engines"]
        for name in ("still", "later", "foreign")
    }
    with connect(upgraded.corral, upgraded.known["keys"]["inference"]["secret"]) as api:
        red = api.get("/adapters/still", wait=20)
    answer = upgraded.api.post(
        "/chat/completions",
        model="still",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
    )

    assert {name: [engine["status"] for engine in each] for name, each in states.items()} == {
        "still": ["ready"],
        "later": ["ready"],
        "foreign": ["failed"],
    }
    assert (red["id"], red["default_scale"]) == (upgraded.known["red"]["adapter"], 0.5)
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."


def test_dead_letters_are_retried(upgraded: Upgraded) -> None:
    """All are listed and retried, but a batch that has its output files."""
    dead = upgraded.known["dead"]
    listed = upgraded.operator.command("jobs", "dead")
    store_id, late = (upgraded.known["store"][name] for name in ("id", "late"))
    retried = {kind: retry(upgraded, letter["id"]) for kind, letter in dead.items()}
    upgraded.wait_for_store()
    file = upgraded.api.get(f"/vector_stores/{store_id}/files/{late}")

    assert all(letter["id"] in listed for letter in dead.values())
    assert retried == {
        "vector-file": None,
        "batch": grpc.StatusCode.FAILED_PRECONDITION,
        "run": None,
        "response": None,
    }
    assert file["status"] == "completed"


def retry(upgraded: Upgraded, job_id: str) -> grpc.StatusCode | None:
    """Retry a dead letter; return the status code if that is refused."""
    asked = job_service_pb2.RetryJobRequest(job_id=job_id)
    with grpc.insecure_channel(upgraded.corral.control) as channel:
        try:
            JobServiceStub(channel).RetryJob(asked, metadata=upgraded.credentials, timeout=10)
        except grpc.RpcError as error:
            return error.code()
    return None


# ---- new work on old objects


def test_responses_are_continued(upgraded: Upgraded) -> None:
    """A chain, a function call without output, an encrypted summary, and a picture (since 0.2)."""
    known = upgraded.known
    about: dict[str, Any] = {"model": MODEL, "temperature": 0}
    chained = upgraded.api.post(
        "/responses",
        **about,
        input="What is the capital of France?",
        previous_response_id=known["responses"]["second"],
    )
    called = upgraded.api.get(upgraded.response("called"))
    [call] = [item for item in called["output"] if item["type"] == "function_call"]
    output = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "18 degrees and sunny",
    }
    answered = upgraded.api.post(
        "/responses", **about, input=[output], previous_response_id=called["id"]
    )
    summed = upgraded.api.post(
        "/responses",
        **about,
        input=[*known["compacted"], {"role": "user", "content": "What is the capital of Spain?"}],
    )

    if "seen" in known["responses"]:
        seen = upgraded.api.post(
            "/responses", **about, input="Again.", previous_response_id=known["responses"]["seen"]
        )
        assert seen["status"] == "completed"
    assert "Paris" in text_of(chained)
    assert "18" in text_of(answered)
    assert "Madrid" in text_of(summed)
    assert [item["type"] for item in known["compacted"]].count("compaction") == 1


def text_of(response: Any) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def test_assistants_and_threads_run_again(upgraded: Upgraded) -> None:
    """A new run of an existing assistant on an existing thread."""
    assistants, thread_id = upgraded.known["assistants"], upgraded.known["thread"]
    run = upgraded.api.post(
        f"/threads/{thread_id}/runs",
        assistant_id=assistants["plain"],
        additional_messages=[{"role": "user", "content": "What is the capital of Italy?"}],
    )
    path = f"/threads/{thread_id}/runs/{run['id']}"
    upgraded.api.events(f"{path}/events")
    [message] = upgraded.api.get(f"/threads/{thread_id}/messages", run_id=run["id"])["data"]

    assert upgraded.api.get(path)["status"] == "completed"
    assert "Rome" in message["content"][0]["text"]["value"]


def test_stored_prefixes_are_used_and_deleted_with_their_object(upgraded: Upgraded) -> None:
    """A stored prefix is restored if this release has the same llama.cpp. It is deleted with its
    response.
    """
    archived = upgraded.known["responses"]["archived"]
    [file] = [
        path
        for path in (upgraded.data / "snapshots" / "archive").glob("*.snapshot")
        if archived in description_of(path)
    ]
    is_same_engine = version("llama-cpp-python") in description_of(file)
    response = upgraded.api.post(
        "/responses", model=MODEL, temperature=0, input=QUESTION, previous_response_id=archived
    )
    upgraded.api.request("DELETE", f"/responses/{archived}")
    deadline = time.monotonic() + PATIENCE_S
    while file.exists() and time.monotonic() < deadline:
        upgraded.operator.jobs()  # a round trip

    assert not file.exists()
    assert response["usage"]["input_tokens_details"]["cached_tokens"] >= 64 * is_same_engine


def description_of(snapshot: Path) -> str:
    """The header of a stored prefix, which names its object and its llama.cpp release."""
    return snapshot.read_bytes()[:1024].decode("latin-1")


def test_a_deleted_response_stays_deleted(upgraded: Upgraded) -> None:
    """No dead cleanup job is left for it."""
    deleted = upgraded.known["deleted_response"]
    answer: httpx.Response = upgraded.api.http.get(f"/v1/responses/{deleted}")
    unfinished = [
        job.subject
        for job in upgraded.operator.jobs(job_service_pb2.Job.STATE_DEAD)
        if job.subject.startswith(deleted)
    ]

    assert answer.status_code == 404
    assert unfinished == []
