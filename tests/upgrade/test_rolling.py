"""All services are replaced one after the other, by those of another release and back, while
clients work through a balancer.
"""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from bench.servers import free_ports
from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from svc_kit.network import parse_address
from tests.support.balancers import RunBalancer, Served, run_envoy, run_haproxy
from tests.support.batches import jsonl
from tests.support.control import write_service_token
from tests.support.debian_packages import ROOT
from tests.support.postgres import create_database, run_test_postgres
from tests.support.processes import Program
from tests.support.release_trees import serve
from tests.support.sdk_batches import ENDED, make_lines
from tests.support.services import MODEL, Settings, wait_until_serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]
_log = logging.getLogger(__name__)
NAMES: Final = ("gateway-1", "gateway-2", "inference-1", "inference-2", "control-1", "control-2")
"""Callers first: those of release 0.2 do not call again what a control service that drains has
received and not accepted. On the way back they come last."""
DELAY_S: Final = 4.0
"""A balancer sees within it that a service leaves, and that the one before it is back."""
QUESTION: Final = "What is the capital of France?"
ANSWER: Final = "The capital of France is Paris."
LONG: Final = 120
NUM_LINES: Final = 30
ABOUT: Final[Mapping[str, Any]] = {"model": MODEL, "temperature": 0.0}
CHAT: Final[Mapping[str, Any]] = {**ABOUT, "messages": [{"role": "user", "content": QUESTION}]}
Work = Callable[[openai.AsyncOpenAI], Awaitable[None]]


@dataclass
class Member:
    """A service, and where the balancer finds it."""

    name: str
    folder: Path
    served: Served
    old: Settings
    new: Settings
    program: Program | None = field(default=None, init=False)

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def start(self, sources: Path) -> None:
        """Start it from a source tree, and wait until it serves."""
        settings = self.new if sources == ROOT else self.old
        data = self.folder / ("shared" if self.kind == "control" else self.name) / "data"
        data.parent.mkdir(exist_ok=True)
        self.program = serve(self.kind, data, sources, settings)
        self.program.wait_for_line(r"serving (gRPC|HTTP) on ")
        if self.kind != "gateway":
            wait_until_serving(str(self.served.address))

    def replace(self, sources: Path) -> None:
        """Drain it, and start it from another tree."""
        assert self.program is not None
        self.program.signal(signal.SIGTERM)
        assert self.program.wait() == 0
        self.start(sources)

    def kill(self) -> None:
        if self.program is not None:
            with self.program:
                self.program.signal(signal.SIGKILL)
                self.program.wait()


@contextmanager
def make_members(folder: Path, balancer_port: int) -> Iterator[Mapping[str, Member]]:
    """Services that are not started yet, with a database. Those of the last release know no list
    of replicas, and reach them by the balancer only."""
    ports = free_ports(2 * len(NAMES))
    served = {
        name: Served(parse_address(f"127.0.0.1:{port}"), parse_address(f"127.0.0.1:{management}"))
        for name, port, management in zip(NAMES, ports[::2], ports[1::2], strict=True)
    }
    with ExitStack() as stack:
        url = create_database(stack.enter_context(run_test_postgres()))
        asyncio.run(upgrade_database(ControlSettings(data_dir=folder, database_url=url)))
        replicas, controls = (
            ",".join(str(served[f"{kind}-{number}"].address) for number in (1, 2))
            for kind in ("inference", "control")
        )
        balancer = f"127.0.0.1:{balancer_port}"
        old: Settings = {"inference_target": balancer}
        new: Settings = {"inference_target": replicas, "inference_balancer": balancer}
        control = {"control_target": f"ipv4:{controls}"}
        token = {"service_token_file": str(write_service_token(folder))}
        kinds: dict[str, Settings] = {
            "inference": {**control, "server.drain_delay_s": DELAY_S},
            "control": {"database_url": url},
            "gateway": {**control, "drain_delay_s": DELAY_S},
        }
        members = {}
        for name, where in served.items():
            kind = name.partition("-")[0]
            own = {**kinds[kind], **token, "listen": str(where.address)}
            own["management_listen"] = str(where.management)
            reached = (
                [own, own] if kind == "inference" else [{**own, **each} for each in (old, new)]
            )
            members[name] = Member(name, folder, where, *reached)
            stack.callback(members[name].kill)
        yield members


async def chat(client: openai.AsyncOpenAI) -> None:
    done = await client.chat.completions.create(**CHAT)
    assert done.choices[0].message.content == ANSWER


async def stream_chat(client: openai.AsyncOpenAI) -> None:
    """Longer than a health check."""
    stream = await client.chat.completions.create(
        **CHAT,
        stream=True,
        max_tokens=LONG,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    assert [each.usage.completion_tokens for each in chunks if each.usage] == [LONG]


async def follow_response(client: openai.AsyncOpenAI) -> None:
    """In the background, which a control process hands over when it drains."""
    response = await client.responses.create(input=QUESTION, background=True, **ABOUT)
    followed: Any = await client.responses.retrieve(response.id, stream=True)
    events = [event async for event in followed]
    assert events[-1].type == "response.completed"
    assert [each.sequence_number for each in events] == list(range(len(events)))


async def run_thread(client: openai.AsyncOpenAI) -> None:
    runs, threads = client.beta.threads.runs, client.beta.threads
    assistant = await client.beta.assistants.create(model=MODEL, temperature=0)
    thread = await threads.create(messages=[{"role": "user", "content": QUESTION}])
    stream = await runs.create(thread_id=thread.id, assistant_id=assistant.id, stream=True)
    events = [event async for event in stream]
    assert events[-1].event == "thread.run.completed"


async def store_file(client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=("in.jsonl", jsonl(make_lines(1))), purpose="batch")
    content = await client.files.content(file.id)
    assert content.content == jsonl(make_lines(1))
    await client.files.delete(file.id)


async def complete_batch(client: openai.AsyncOpenAI) -> None:
    lines = jsonl(make_lines(NUM_LINES))
    file = await client.files.create(file=("in.jsonl", lines), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ENDED:
        await store_file(client)
        batch = await client.batches.retrieve(batch.id)
    content = await client.files.content(batch.output_file_id or "")
    assert len(content.text.splitlines()) == NUM_LINES


WORKS: Final[tuple[Work, ...]] = (
    chat,
    stream_chat,
    follow_response,
    run_thread,
    store_file,
    complete_batch,
)


async def roll(members: Mapping[str, Member], url: str, last_release: Path) -> Counter[str]:
    """Replace all by this tree and back while clients work; return what they did."""
    done, has_ended = Counter[str](), asyncio.Event()

    async def work_on(work: Work) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            while not has_ended.is_set():
                await work(client)
                done[work.__name__] += 1

    async with asyncio.TaskGroup() as clients:
        for work in WORKS:
            clients.create_task(work_on(work))
        for sources, names in ((ROOT, NAMES), (last_release, NAMES[::-1])):
            for name in names:
                await asyncio.to_thread(members[name].replace, sources)
                _log.warning("replaced %s; done: %s", name, dict(done))
        has_ended.set()
    return done


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK deprecates Assistants
@pytest.mark.parametrize("run", [run_envoy, run_haproxy], ids=["Envoy", "HAProxy"])
def test_services_are_replaced_and_no_request_fails(
    run: RunBalancer, last_release: Path, tmp_path: Path
) -> None:
    """With SDKs that do not retry."""

    async def balance() -> Counter[str]:
        inference, gateways = (
            [each.served for each in members.values() if each.kind == kind]
            for kind in ("inference", "gateway")
        )
        async with run(tmp_path, inference, gateways, inference_port=port) as balancer:
            return await roll(members, f"http://{balancer.http}/v1", last_release)

    (port,) = free_ports(1)
    with make_members(tmp_path, port) as members:
        with ThreadPoolExecutor(len(members)) as threads:
            list(threads.map(lambda member: member.start(last_release), members.values()))
        done = asyncio.run(balance())

    assert set(done) == {work.__name__ for work in WORKS}
