"""The registry of adapters over gRPC, on both databases."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corral.control.v1 import adapter_pb2
from google.protobuf.duration_pb2 import Duration

from control_svc.adapters.model import Adapter
from control_svc.adapters.queries import AdapterQueries
from control_svc.adapters.sync import AdapterSync
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.store import BlobMissing
from model_files.adapter_facts import AdapterFacts
from svc_kit import errors
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from tests.support.control import RunningControl, run_control
from tests.support.gguf_files import F32Tensor
from tests.support.jobs import open_test_database
from tests.support.registry import Registry, adapter_bytes, lora_pair

READY = adapter_pb2.AdapterReport.STATE_READY
LOADING = adapter_pb2.AdapterReport.STATE_LOADING
FAILED = adapter_pb2.AdapterReport.STATE_FAILED


@pytest.fixture
def registry(running: RunningControl) -> Registry:
    """The registry as an operator sees it, and as a frontend does."""
    return Registry.of(running.client, running.service_metadata)


def a_report(adapter: adapter_pb2.Adapter, **fields: Any) -> adapter_pb2.AdapterReport:
    """What a frontend says of an adapter."""
    about = {"adapter_id": adapter.id, "project": "default", "sha256": adapter.sha256}
    return adapter_pb2.AdapterReport(**{**about, "state": READY, **fields})


async def report(registry: Registry, *reports: adapter_pb2.AdapterReport) -> None:
    """Say it as a frontend."""
    await registry.call("ReportAdapters", frontend="fe_1", address="host:1", reports=reports)


async def names(registry: Registry, **request: Any) -> list[str]:
    """The names on a page."""
    return [each.name for each in (await registry.call("ListAdapters", **request)).adapters]


async def test_an_adapter_says_what_its_file_says(registry: Registry) -> None:
    """It is found by its id and by its name, and its bytes come back by their digest."""
    content = adapter_bytes()
    made = await registry.create(content, description="Arr", default_scale=0.5, model="tiny")

    assert made == await registry.get(made.id) == await registry.get("voice")
    assert made.sha256 == hashlib.sha256(content).hexdigest()
    assert (made.architecture, made.base_model, made.title) == ("llama", "Tiny", "voice")
    assert (made.rank, made.size_bytes, made.file_bytes) == (8, 3072, len(content))
    assert (made.description, made.default_scale, made.model) == ("Arr", 0.5, "tiny")
    assert await registry.download(made.sha256) == content


async def test_an_adapter_of_a_file_outlives_it(
    running: RunningControl, registry: Registry
) -> None:
    """It has bytes of its own."""
    content = adapter_bytes()
    file = await running.client.create(content)
    made = await registry.create(file_id=file.id)
    await running.client.delete(file.id)

    assert await registry.download(made.sha256) == content
    with pytest.raises(errors.FileNotFound):
        await registry.create(name="other", file_id=file.id)


async def test_a_path_leads_only_into_the_operators_folders(
    running: RunningControl, registry: Registry
) -> None:
    """Neither out of them nor for a caller who is no operator."""
    folder = running.folder / "adapters"
    folder.mkdir()
    (folder / "mine.gguf").write_bytes(adapter_bytes())
    (running.folder / "outside.gguf").write_bytes(adapter_bytes())
    (folder / "link.gguf").symlink_to(running.folder / "outside.gguf")

    made = await registry.create(path="mine.gguf")
    assert made.sha256 == hashlib.sha256(adapter_bytes()).hexdigest()
    for path in ("../outside.gguf", "link.gguf", str(running.folder / "outside.gguf"), "no", "\0"):
        with pytest.raises(errors.InvalidField, match="no such file"):
            await registry.create(name="other", path=path)
    with pytest.raises(errors.ScopeMissing):
        await Registry.of(running.of_project("mine")).create(path="mine.gguf")


def hostile() -> dict[str, bytes]:
    """Files that are no adapters, by what is wrong with them."""
    sound = adapter_bytes()
    infinite = bytearray(sound)
    infinite[-4:] = np.float32("inf").tobytes()
    return {
        "truncated": sound[:-1000],
        "not a GGUF file": b"GGML" + sound[4:],
        "not finite": bytes(infinite),
        "1099511627776 tensors": sound[:8] + (1 << 40).to_bytes(8, "little") + sound[16:],
        "the matrices for": adapter_bytes(lora_pair(b=(4, 32))),
        "one matrix of the LoRA": adapter_bytes(lora_pair()[:1]),
        "ignore it": adapter_bytes([*lora_pair(), F32Tensor("blk.0.attn_norm.weight", (64,))]),
        "general.type is 'model'": adapter_bytes(general__type="model"),
        "general.architecture is missing": adapter_bytes(general__architecture=None),
        "adapter.type is": adapter_bytes(adapter__type="control_vector"),
        "alpha": adapter_bytes(adapter__lora__alpha=float("nan")),
    }


@pytest.mark.parametrize("problem", hostile())
async def test_what_is_no_adapter_leaves_nothing(
    running: RunningControl, registry: Registry, problem: str
) -> None:
    """The refusal says what is wrong; there is neither a row nor a byte."""
    with pytest.raises(errors.AdapterInvalid) as refused:
        await registry.create(hostile()[problem])

    assert problem in refused.value.problem
    assert running.stored() == []
    assert await names(registry) == []


async def test_files_are_judged_in_limited_children(tmp_path: Path) -> None:
    """As the service runs: a hostile file is refused, a sound one is registered after it."""
    async with (
        SandboxPool(SandboxSettings(min_children=0, max_children=1)) as pool,
        run_control(tmp_path, sandbox=pool) as running,
    ):
        registry = Registry.of(running.client)
        with pytest.raises(errors.AdapterInvalid, match="truncated"):
            await registry.create(adapter_bytes()[:-1000])

        assert (await registry.create()).rank == 8


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ({"name": ""}, errors.InvalidField),
        ({"name": "a/b"}, errors.InvalidField),
        ({"name": "adapter_" + "0" * 32}, errors.InvalidField),
        ({"name": "x" * 129}, errors.InvalidField),
        ({"default_scale": 11}, errors.OutOfRange),
        ({"default_scale": float("nan")}, errors.OutOfRange),
        ({"description": "x" * 513}, errors.TooLong),
        ({"model": "a\nb"}, errors.InvalidField),
        ({"sha256": "0"}, errors.InvalidField),
        ({"sha256": "0" * 64}, errors.ChecksumMismatch),
        ({"file_id": "file-1", "path": "x"}, errors.InvalidField),
        ({"file_id": "file-1"}, errors.FileNotFound),
    ],
)
async def test_a_bad_header_is_refused(
    running: RunningControl, registry: Registry, header: Any, error: Any
) -> None:
    """Before anything is kept."""
    with pytest.raises(error):
        await registry.create(**header)

    assert running.stored() == []


async def test_a_header_and_one_source_must_be_there(registry: Registry) -> None:
    """Bytes without a name, a name without bytes, and both kinds at once are refused."""
    header = adapter_pb2.AdapterHeader(name="voice")
    with pytest.raises(errors.MissingField, match="header"):
        await registry.send([adapter_bytes()])
    with pytest.raises(errors.MissingField, match="file"):
        await registry.send([header])
    with pytest.raises(errors.InvalidField, match="combined with bytes"):
        await registry.send([b"x", adapter_pb2.AdapterHeader(name="voice", file_id="file-1")])

    assert (await registry.send([adapter_bytes(), header])).name == "voice"


async def test_a_name_is_one_adapters_unless_it_is_replaced(
    running: RunningControl, registry: Registry
) -> None:
    """The replacement keeps the id; the bytes before it are gone."""
    first = await registry.create()
    with pytest.raises(errors.AdapterExists):
        await registry.create(adapter_bytes(general__name="other"))
    assert len(running.stored()) == 1
    second = await registry.create(adapter_bytes(general__name="other"), replace=True)

    assert (second.id, second.title) == (first.id, "other")
    assert second.etag != first.etag
    assert len(running.stored()) == 1
    with pytest.raises(errors.AdapterNotFound):
        await registry.download(first.sha256)


async def test_a_request_is_carried_out_once(running: RunningControl, registry: Registry) -> None:
    """Sent again it finds what it made; with other bytes it is another one."""
    first = await registry.create(request_id="one")

    assert (await registry.create(request_id="one")).id == first.id
    assert len(running.stored()) == 1
    with pytest.raises(errors.RequestIdReused):
        await registry.create(adapter_bytes(general__name="x"), request_id="one")


async def test_a_replacement_is_carried_out_once(
    running: RunningControl, registry: Registry
) -> None:
    """Sent again it finds the adapter that it gave new bytes, as that is now."""
    first = await registry.create()
    content = adapter_bytes(general__name="x")
    second = await registry.create(content, replace=True, request_id="one")
    again = await registry.create(content, replace=True, request_id="one")

    assert first.id == again.id
    assert second == again
    assert len(running.stored()) == 1


async def test_the_number_of_adapters_of_a_project_is_limited(
    tmp_path: Path, database_url: str | None
) -> None:
    """A replacement does not count, nor do adapters of other projects."""
    bounds = {"per_project": 1, "file_bytes": 8000}
    async with run_control(tmp_path, database_url, adapters=bounds) as running:
        registry = Registry.of(running.client)
        await registry.create()
        with pytest.raises(errors.TooManyAdapters):
            await registry.create(name="two")
        with pytest.raises(errors.RequestTooLarge):
            await registry.create(bytes(8001), replace=True)
        await registry.create(replace=True)

        assert (await Registry.of(running.of_project("other")).create()).name == "voice"


async def test_scales_and_description_change(registry: Registry) -> None:
    """Only what is set; an etag of before is refused."""
    made = await registry.create(description="old")
    await registry.call("UpdateAdapter", adapter="voice", default_scale=0.25, etag=made.etag)
    with pytest.raises(errors.StaleGeneration):
        await registry.call("UpdateAdapter", adapter=made.id, description="x", etag=made.etag)
    with pytest.raises(errors.OutOfRange):
        await registry.call("UpdateAdapter", adapter="voice", standing_scale=-10.5)
    answer = await registry.call("UpdateAdapter", adapter="voice", standing_scale=1, description="")

    changed = answer.adapter
    assert (changed.default_scale, changed.standing_scale, changed.description) == (0.25, 1, "")


async def test_a_deleted_adapter_is_gone_with_its_bytes(
    running: RunningControl, registry: Registry
) -> None:
    """Its name is free again; reports of it are forgotten."""
    made = await registry.create()
    await report(registry, a_report(made))
    with pytest.raises(errors.StaleGeneration):
        await registry.call("DeleteAdapter", adapter="voice", etag="0")
    gone = await registry.call("DeleteAdapter", adapter="voice", etag=made.etag)
    await report(registry, a_report(made))

    assert gone.adapter_id == made.id
    assert running.stored() == []
    for method in ("GetAdapter", "UpdateAdapter", "DeleteAdapter", "RetryAdapter"):
        with pytest.raises(errors.AdapterNotFound):
            await registry.call(method, adapter=made.id)
    assert (await registry.create()).engines == []


async def test_lists_come_in_pages(registry: Registry) -> None:
    """Newest first; a token belongs to its list."""
    for name in ("one", "two", "three"):
        await registry.create(name=name)
    page = await registry.call("ListAdapters", page_size=2)

    assert [each.name for each in page.adapters] == ["three", "two"]
    assert await names(registry, page_size=2, page_token=page.next_page_token) == ["one"]
    assert await names(registry, after=page.adapters[0].id, order=2) == []
    with pytest.raises(errors.InvalidField):
        await names(registry, page_token=page.next_page_token, order=2)
    with pytest.raises(errors.InvalidField):
        await names(registry, after="voice")


async def test_the_same_name_in_two_projects_is_two_adapters(running: RunningControl) -> None:
    """Neither sees the other's, by name or by id."""
    mine, other = (Registry.of(running.of_project(name)) for name in ("mine", "other"))
    first = await mine.create()
    second = await other.create(adapter_bytes(general__name="other"))

    assert (await mine.get("voice")).sha256 == first.sha256 != second.sha256
    for method in ("GetAdapter", "UpdateAdapter", "DeleteAdapter", "RetryAdapter"):
        with pytest.raises(errors.AdapterNotFound):
            await mine.call(method, adapter=second.id)


async def test_swept_bytes_are_no_adapters(running: RunningControl, registry: Registry) -> None:
    """The sweeper knows whose bytes they are."""
    made = await registry.create()
    running.clock.advance(days=30)
    await running.control.sweeper.sweep()

    assert await registry.download(made.sha256) == adapter_bytes()


@pytest.mark.parametrize("name", ["", "voi\0ce", "x" * 5000, "../voice", "voice ", "VOICE"])
async def test_what_nothing_is_called_is_not_found(registry: Registry, name: str) -> None:
    """Whatever a database would make of it."""
    await registry.create()

    for method in ("GetAdapter", "UpdateAdapter", "DeleteAdapter", "RetryAdapter"):
        with pytest.raises(errors.AdapterNotFound):
            await registry.call(method, adapter=name)


@pytest.mark.parametrize("seconds", [-1, -(2**62), 2**62])
async def test_a_wait_of_any_length_is_bounded(registry: Registry, seconds: int) -> None:
    """An adapter that engines have settled is not waited for at all."""
    made = await registry.create()
    await report(registry, a_report(made))

    assert (await registry.get("voice", wait=Duration(seconds=seconds))).id == made.id


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"state": 99}, errors.InvalidField),
        ({"project": "a\0b"}, errors.InvalidField),
        ({"model": "x" * 300}, errors.TooLong),
        ({"reason": "a\nb"}, errors.InvalidField),
    ],
)
async def test_a_bad_report_is_refused(registry: Registry, fields: Any, error: Any) -> None:
    """What the frontend said before stays; what is about no adapter is left out."""
    made = await registry.create()
    await report(registry, a_report(made), a_report(made, adapter_id="x"))
    with pytest.raises(error):
        await report(registry, a_report(made, **fields))
    with pytest.raises(errors.MissingField):
        await registry.call("ReportAdapters", frontend="", reports=[])

    assert [each.state for each in (await registry.get("voice")).engines] == [READY]


# --- what frontends follow ------------------------------------------------------------------------


async def test_a_follower_gets_everything_and_then_what_changes(registry: Registry) -> None:
    """Over all projects; several changes between two looks are one."""
    first = await registry.create(name="one", default_scale=0.5)
    async with aclosing(registry.watch()) as events:
        state = await anext(events)
        second = await registry.create(name="two")
        added = await anext(events)
        await registry.call("RetryAdapter", adapter="two")
        retried = await anext(events)
        await registry.call("DeleteAdapter", adapter="one")
        removed = await anext(events)

    (desired,) = state.state.adapters
    assert (desired.id, desired.name, desired.sha256) == (first.id, "one", first.sha256)
    assert (desired.project, desired.default_scale, desired.attempt) == ("default", 0.5, 0)
    assert desired.file_bytes == first.file_bytes
    assert [each.id for each in added.change.adapters] == [second.id]
    assert [each.attempt for each in retried.change.adapters] == [1]
    assert list(removed.change.removed_ids) == [first.id]


async def test_a_follower_that_comes_back_goes_on(registry: Registry) -> None:
    """Where nothing has changed meanwhile nothing is sent again; else everything."""
    await registry.create(name="one")
    async with aclosing(registry.watch()) as events:
        revision = (await anext(events)).revision
    async with aclosing(registry.watch(revision)) as events:
        nothing = await anext(events)
        await registry.create(name="two")
        change = await anext(events)
    async with aclosing(registry.watch(revision)) as events:
        everything = await anext(events)

    assert nothing.WhichOneof("event") == change.WhichOneof("event") == "change"
    assert not nothing.change.adapters
    assert [each.name for each in change.change.adapters] == ["two"]
    assert len(everything.state.adapters) == 2


async def test_what_frontends_report_is_shown_with_the_adapter(
    running: RunningControl, registry: Registry
) -> None:
    """The last report of each frontend that is still there."""
    made = await registry.create()
    await report(registry, a_report(made, state=LOADING))
    await report(registry, a_report(made, state=FAILED, reason="ADAPTER_INVALID", problem="it"))
    (seen,) = (await registry.get("voice")).engines
    running.clock.advance(minutes=5)
    await registry.call("ReportAdapters", frontend="fe_2", reports=[a_report(made)])
    (later,) = (await registry.get("voice", wait=Duration(seconds=20))).engines

    assert (seen.frontend, seen.address, seen.state) == ("fe_1", "host:1", FAILED)
    assert (seen.reason, seen.problem) == ("ADAPTER_INVALID", "it")
    assert (later.frontend, later.state) == ("fe_2", READY)


async def test_only_operators_and_services_follow(running: RunningControl) -> None:
    """All projects' adapters are nobody else's business."""
    mine = Registry.of(running.of_project("mine"))
    made = await mine.create()

    with pytest.raises(errors.ScopeMissing):
        await anext(mine.watch())
    with pytest.raises(errors.ScopeMissing):
        await mine.download(made.sha256)
    with pytest.raises(errors.ScopeMissing):
        await report(mine, a_report(made))


async def test_control_processes_on_one_database_tell_each_other(
    tmp_path: Path, postgres_url: str
) -> None:
    """A follower of one hears what the other registers, and gets its bytes; a caller of the other
    hears what the follower reports."""
    async with (
        run_control(tmp_path, postgres_url) as one,
        run_control(tmp_path, postgres_url) as two,
    ):
        here, there = (Registry.of(each.client, each.service_metadata) for each in (one, two))
        async with aclosing(there.watch()) as events:
            await anext(events)
            made = await here.create()
            change = await anext(events)
        waiting = asyncio.create_task(here.get("voice", wait=Duration(seconds=20)))
        await report(there, a_report(made))

        assert [each.id for each in change.change.adapters] == [made.id]
        assert await there.download(made.sha256) == adapter_bytes()
        assert [each.state for each in (await waiting).engines] == [READY]


class LostBytes(FolderBlobs):
    """A store that has nothing; something happens while it is asked."""

    def __init__(self, folder: Path, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(folder)
        self._meanwhile = meanwhile

    async def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """Nothing."""
        await self._meanwhile()
        raise BlobMissing(key)
        yield b""


@pytest.mark.parametrize(
    ("key_after", "error"),
    [
        ("two", errors.AdapterNotFound),
        (None, errors.AdapterNotFound),
        ("one", BlobMissing),
    ],
)
async def test_bytes_that_go_while_they_are_asked_for_are_not_found(
    tmp_path: Path, key_after: str | None, error: type[Exception]
) -> None:
    """A frontend asks again then; bytes that a row still names are lost, which is a defect."""
    digest, now = "0" * 64, datetime(2026, 1, 1, tzinfo=UTC)
    adapter = Adapter(
        id="adapter_1",
        name="voice",
        model="",
        description="",
        default_scale=1.0,
        standing_scale=0.0,
        sha256=digest,
        file_bytes=1,
        blob_key="one",
        facts=AdapterFacts(architecture="llama", base_model="", rank=1, size_bytes=1, title=""),
        created_at=now,
        updated_at=now,
    )
    async with open_test_database(tmp_path) as database:
        await database.transactions.write(lambda tx: AdapterQueries(tx).add("p", adapter))

        async def meanwhile() -> None:
            await database.transactions.write(lambda tx: AdapterQueries(tx).delete("p", adapter.id))
            if key_after is not None:
                again = replace(adapter, blob_key=key_after)
                await database.transactions.write(lambda tx: AdapterQueries(tx).add("p", again))

        desired = AdapterSync(
            database.transactions, LostBytes(tmp_path, meanwhile), database.notifications
        )
        with pytest.raises(error):
            await anext(aiter(desired.download(digest)))
