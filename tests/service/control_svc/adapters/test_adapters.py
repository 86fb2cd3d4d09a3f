"""AdapterService over gRPC, on SQLite and PostgreSQL."""

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
from corral.inference.v1 import inference_service_pb2, model_pb2
from google.protobuf.duration_pb2 import Duration

from control_svc.adapters.model import Adapter, DesiredChange, DesiredState
from control_svc.adapters.queries import AdapterQueries
from control_svc.adapters.sync import AdapterSync
from control_svc.blobs.local import FolderBlobs
from model_files.adapter_facts import AdapterFacts
from svc_kit import errors
from svc_kit.auth.authenticator import build_authenticator
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from tests.support.control import RunningControl, run_control, write_service_token
from tests.support.gguf_files import F32Tensor
from tests.support.jobs import open_test_database
from tests.support.registry import Registry, adapter_bytes, lora_pair
from tests.support.rpc_servers import ScriptedInference, run_rpc_server

READY = adapter_pb2.AdapterReport.STATE_READY
LOADING = adapter_pb2.AdapterReport.STATE_LOADING
FAILED = adapter_pb2.AdapterReport.STATE_FAILED


@pytest.fixture
def registry(running: RunningControl) -> Registry:
    """A client with the caller's and the frontend's metadata."""
    return Registry.of(running.client, running.service_metadata)


def make_report(adapter: adapter_pb2.Adapter, **fields: Any) -> adapter_pb2.AdapterReport:
    """Build a report of an adapter, READY unless `fields` say otherwise."""
    defaults = {"adapter_id": adapter.id, "project": "default", "sha256": adapter.sha256}
    return adapter_pb2.AdapterReport(**{**defaults, "state": READY, **fields})


async def send_reports(registry: Registry, *reports: adapter_pb2.AdapterReport) -> None:
    await registry.call("ReportAdapters", frontend="fe_1", address="host:1", reports=reports)


async def list_names(registry: Registry, **request: Any) -> list[str]:
    return [each.name for each in (await registry.call("ListAdapters", **request)).adapters]


async def test_a_created_adapter_has_the_metadata_of_its_file(registry: Registry) -> None:
    """It is returned by id and by name, and its bytes can be downloaded by digest."""
    content = adapter_bytes()
    adapter = await registry.create(content, description="Arr", default_scale=0.5, model="tiny")

    assert adapter == await registry.get(adapter.id) == await registry.get("voice")
    assert adapter.sha256 == hashlib.sha256(content).hexdigest()
    assert (adapter.architecture, adapter.base_model, adapter.title) == ("llama", "Tiny", "voice")
    assert (adapter.rank, adapter.size_bytes, adapter.file_bytes) == (8, 3072, len(content))
    assert (adapter.description, adapter.default_scale, adapter.model) == ("Arr", 0.5, "tiny")
    assert await registry.download(adapter.sha256) == content


async def test_an_adapter_keeps_its_bytes_after_its_source_file_is_deleted(
    running: RunningControl, registry: Registry
) -> None:
    """The deleted file cannot be the source of another adapter."""
    content = adapter_bytes()
    file = await running.client.create(content)
    adapter = await registry.create(file_id=file.id)
    await running.client.delete(file.id)

    assert await registry.download(adapter.sha256) == content
    with pytest.raises(errors.FileNotFound):
        await registry.create(name="other", file_id=file.id)


async def test_a_path_must_be_inside_the_configured_folder(
    running: RunningControl, registry: Registry
) -> None:
    """`..`, links and absolute paths are refused; a caller without admin scope may use no path."""
    folder = running.folder / "adapters"
    folder.mkdir()
    (folder / "mine.gguf").write_bytes(adapter_bytes())
    (running.folder / "outside.gguf").write_bytes(adapter_bytes())
    (folder / "link.gguf").symlink_to(running.folder / "outside.gguf")

    adapter = await registry.create(path="mine.gguf")
    assert adapter.sha256 == hashlib.sha256(adapter_bytes()).hexdigest()
    for path in ("../outside.gguf", "link.gguf", str(running.folder / "outside.gguf"), "no", "\0"):
        with pytest.raises(errors.InvalidField, match="no such file"):
            await registry.create(name="other", path=path)
    with pytest.raises(errors.ScopeMissing):
        await Registry.of(running.of_project("mine")).create(path="mine.gguf")


def invalid_adapter_files() -> dict[str, bytes]:
    """Return invalid adapter files, keyed by a part of the expected error message."""
    valid = adapter_bytes()
    infinite = bytearray(valid)
    infinite[-4:] = np.float32("inf").tobytes()
    return {
        "truncated": valid[:-1000],
        "not a GGUF file": b"GGML" + valid[4:],
        "not finite": bytes(infinite),
        "1099511627776 tensors": valid[:8] + (1 << 40).to_bytes(8, "little") + valid[16:],
        "the matrices for": adapter_bytes(lora_pair(b=(4, 32))),
        "one matrix of the LoRA": adapter_bytes(lora_pair()[:1]),
        "ignore it": adapter_bytes([*lora_pair(), F32Tensor("blk.0.attn_norm.weight", (64,))]),
        "general.type is 'model'": adapter_bytes(general__type="model"),
        "general.architecture is missing": adapter_bytes(general__architecture=None),
        "adapter.type is": adapter_bytes(adapter__type="control_vector"),
        "alpha": adapter_bytes(adapter__lora__alpha=float("nan")),
    }


async def test_an_invalid_file_is_refused_and_nothing_is_stored(
    running: RunningControl, registry: Registry, subtests: pytest.Subtests
) -> None:
    """The error names the problem; no row and no blob is stored."""
    for problem, content in invalid_adapter_files().items():
        with subtests.test(problem=problem):
            with pytest.raises(errors.AdapterInvalid) as error:
                await registry.create(content)
            assert problem in error.value.problem
            assert running.stored() == []
    assert await list_names(registry) == []


async def test_a_sandboxed_child_validates_files(tmp_path: Path) -> None:
    """After a truncated file is refused, a valid one is registered."""
    async with (
        SandboxPool(SandboxSettings(min_children=0, max_children=1)) as pool,
        run_control(tmp_path, sandbox=pool) as running,
    ):
        registry = Registry.of(running.client)
        with pytest.raises(errors.AdapterInvalid, match="truncated"):
            await registry.create(adapter_bytes()[:-1000])

        assert (await registry.create()).rank == 8


INVALID_HEADERS: list[tuple[dict[str, Any], type[errors.DomainError]]] = [
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
]


async def test_an_invalid_header_is_refused(
    running: RunningControl, registry: Registry, subtests: pytest.Subtests
) -> None:
    """Nothing is stored."""
    for header, error in INVALID_HEADERS:
        with subtests.test(header=header):
            with pytest.raises(error):
                await registry.create(**header)
            assert running.stored() == []


async def test_create_requires_a_header_and_exactly_one_source(registry: Registry) -> None:
    """The header may come after the bytes."""
    header = adapter_pb2.AdapterHeader(name="voice")
    with pytest.raises(errors.MissingField, match="header"):
        await registry.send([adapter_bytes()])
    with pytest.raises(errors.MissingField, match="file"):
        await registry.send([header])
    with pytest.raises(errors.InvalidField, match="combined with bytes"):
        await registry.send([b"x", adapter_pb2.AdapterHeader(name="voice", file_id="file-1")])

    assert (await registry.send([adapter_bytes(), header])).name == "voice"


async def test_creating_an_adapter_with_a_used_name_requires_replace(
    running: RunningControl, registry: Registry
) -> None:
    """A replacement keeps the id and gets a new etag; the old bytes are deleted."""
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


async def test_a_repeated_request_id_returns_the_first_adapter(
    running: RunningControl, registry: Registry
) -> None:
    """The same request id with other bytes is refused."""
    first = await registry.create(request_id="one")

    assert (await registry.create(request_id="one")).id == first.id
    assert len(running.stored()) == 1
    with pytest.raises(errors.RequestIdReused):
        await registry.create(adapter_bytes(general__name="x"), request_id="one")


async def test_a_repeated_replacement_returns_the_replaced_adapter(
    running: RunningControl, registry: Registry
) -> None:
    """It changes nothing and stores no second blob."""
    first = await registry.create()
    content = adapter_bytes(general__name="x")
    second = await registry.create(content, replace=True, request_id="one")
    again = await registry.create(content, replace=True, request_id="one")

    assert first.id == again.id
    assert second == again
    assert len(running.stored()) == 1


async def test_an_adapter_cannot_have_the_name_of_a_model(tmp_path: Path) -> None:
    """By the inference service, which answers for aliases too. The name of an adapter is free for
    its replacement, and nothing is refused while that service is away."""

    class Models(ScriptedInference):
        async def GetModel(self, request: Any, context: Any) -> Any:
            """Two models and an adapter."""
            model = {
                "chat": model_pb2.Model(name="chat"),
                "alias": model_pb2.Model(name="chat", aliases=["alias"]),
                "voice": model_pb2.Model(name="voice", parent="chat"),
            }.get(request.model)
            if request.model == "coming":
                raise errors.ModelLoading(model="coming", retry_after=1.0)
            if model is None:
                raise errors.ModelNotFound(model=request.model)
            return inference_service_pb2.GetModelResponse(model=model)

    authenticator = build_authenticator(
        listen="127.0.0.1:0", service_token_file=write_service_token(tmp_path)
    )
    async with run_rpc_server(Models(), authenticator=authenticator) as inference:
        target = inference.target
        async with run_control(tmp_path, inference_target=target) as running:
            registry = Registry.of(running.client)
            for name in ("chat", "alias", "coming"):
                with pytest.raises(errors.ModelExists):
                    await registry.create(name=name)
            await registry.create(name="voice")
            await registry.create(name="voice", replace=True)
            assert await list_names(registry) == ["voice"]
    async with run_control(tmp_path, inference_target=target) as running:
        assert (await Registry.of(running.client).create(name="chat")).name == "chat"


async def test_adapters_per_project_and_file_bytes_are_limited(
    tmp_path: Path, database_url: str | None
) -> None:
    """Replacements and adapters of other projects do not count."""
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


async def test_an_update_changes_only_the_fields_that_are_set(registry: Registry) -> None:
    """A stale etag and a scale out of range are refused."""
    adapter = await registry.create(description="old")
    await registry.call("UpdateAdapter", adapter="voice", default_scale=0.25, etag=adapter.etag)
    with pytest.raises(errors.StaleGeneration):
        await registry.call("UpdateAdapter", adapter=adapter.id, description="x", etag=adapter.etag)
    with pytest.raises(errors.OutOfRange):
        await registry.call("UpdateAdapter", adapter="voice", standing_scale=-10.5)
    response = await registry.call(
        "UpdateAdapter", adapter="voice", standing_scale=1, description=""
    )

    changed = response.adapter
    assert (changed.default_scale, changed.standing_scale, changed.description) == (0.25, 1, "")


async def test_deleting_an_adapter_deletes_its_bytes_and_reports(
    running: RunningControl, registry: Registry
) -> None:
    """Its id is not found afterwards, and its name can be used again."""
    adapter = await registry.create()
    await send_reports(registry, make_report(adapter))
    with pytest.raises(errors.StaleGeneration):
        await registry.call("DeleteAdapter", adapter="voice", etag="0")
    response = await registry.call("DeleteAdapter", adapter="voice", etag=adapter.etag)
    await send_reports(registry, make_report(adapter))

    assert response.adapter_id == adapter.id
    assert running.stored() == []
    for method in ("GetAdapter", "UpdateAdapter", "DeleteAdapter", "RetryAdapter"):
        with pytest.raises(errors.AdapterNotFound):
            await registry.call(method, adapter=adapter.id)
    assert (await registry.create()).engines == []


async def test_lists_are_paged_newest_first(registry: Registry) -> None:
    """A page token of another order and an `after` that is not an id are refused."""
    for name in ("one", "two", "three"):
        await registry.create(name=name)
    page = await registry.call("ListAdapters", page_size=2)

    assert [each.name for each in page.adapters] == ["three", "two"]
    assert await list_names(registry, page_size=2, page_token=page.next_page_token) == ["one"]
    assert await list_names(registry, after=page.adapters[0].id, order=2) == []
    with pytest.raises(errors.InvalidField):
        await list_names(registry, page_token=page.next_page_token, order=2)
    with pytest.raises(errors.InvalidField):
        await list_names(registry, after="voice")


async def test_two_projects_can_use_the_same_adapter_name(running: RunningControl) -> None:
    """Neither project can get, change or delete the other's adapter by id."""
    mine, other = (Registry.of(running.of_project(name)) for name in ("mine", "other"))
    first = await mine.create()
    second = await other.create(adapter_bytes(general__name="other"))

    assert (await mine.get("voice")).sha256 == first.sha256 != second.sha256
    for method in ("GetAdapter", "UpdateAdapter", "DeleteAdapter", "RetryAdapter"):
        with pytest.raises(errors.AdapterNotFound):
            await mine.call(method, adapter=second.id)


async def test_the_sweeper_keeps_the_bytes_of_adapters(
    running: RunningControl, registry: Registry
) -> None:
    """They can be downloaded after a sweep 30 days later."""
    adapter = await registry.create()
    running.clock.advance(days=30)
    await running.control.sweeper.sweep()

    assert await registry.download(adapter.sha256) == adapter_bytes()


async def test_an_unknown_adapter_name_is_not_found(registry: Registry) -> None:
    """This includes empty, oversized and differently cased names, and names with a NUL."""
    await registry.create()

    for name in ("", "voi\0ce", "x" * 5000, "../voice", "voice ", "VOICE"):
        for method in ("GetAdapter", "UpdateAdapter", "DeleteAdapter", "RetryAdapter"):
            with pytest.raises(errors.AdapterNotFound):
                await registry.call(method, adapter=name)


async def test_get_accepts_any_wait_if_the_adapter_is_ready(registry: Registry) -> None:
    """A negative or huge wait is no error, and returns without waiting."""
    adapter = await registry.create()
    await send_reports(registry, make_report(adapter))

    for seconds in (-1, -(2**62), 2**62):
        assert (await registry.get("voice", wait=Duration(seconds=seconds))).id == adapter.id


async def test_an_invalid_report_leaves_the_previous_state(registry: Registry) -> None:
    """Reports about unknown adapters are ignored; a report without a frontend is refused."""
    adapter = await registry.create()
    await send_reports(registry, make_report(adapter), make_report(adapter, adapter_id="x"))
    cases: list[tuple[dict[str, Any], type[errors.DomainError]]] = [
        ({"state": 99}, errors.InvalidField),
        ({"project": "a\0b"}, errors.InvalidField),
        ({"model": "x" * 300}, errors.TooLong),
        ({"reason": "a\nb"}, errors.InvalidField),
    ]
    for fields, error in cases:
        with pytest.raises(error):
            await send_reports(registry, make_report(adapter, **fields))
    with pytest.raises(errors.MissingField):
        await registry.call("ReportAdapters", frontend="", reports=[])

    assert [each.state for each in (await registry.get("voice")).engines] == [READY]


# --- frontends: watch, download, report -----------------------------------------------------------


async def test_watch_sends_all_adapters_and_then_each_change(registry: Registry) -> None:
    """Creations and retries arrive as changed adapters, deletions as removed ids."""
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


async def test_watch_from_the_current_revision_sends_only_later_changes(registry: Registry) -> None:
    """If adapters changed since the given revision, the full state is sent."""
    await registry.create(name="one")
    async with aclosing(registry.watch()) as events:
        revision = (await anext(events)).revision
    async with aclosing(registry.watch(revision)) as events:
        empty = await anext(events)
        await registry.create(name="two")
        change = await anext(events)
    async with aclosing(registry.watch(revision)) as events:
        full = await anext(events)

    assert empty.WhichOneof("event") == change.WhichOneof("event") == "change"
    assert not empty.change.adapters
    assert [each.name for each in change.change.adapters] == ["two"]
    assert len(full.state.adapters) == 2


async def test_an_adapter_lists_the_last_report_of_each_frontend(
    running: RunningControl, registry: Registry
) -> None:
    """A frontend that has not reported for five minutes is left out."""
    adapter = await registry.create()
    await send_reports(registry, make_report(adapter, state=LOADING))
    await send_reports(
        registry, make_report(adapter, state=FAILED, reason="ADAPTER_INVALID", problem="it")
    )
    (first,) = (await registry.get("voice")).engines
    running.clock.advance(minutes=5)
    await registry.call("ReportAdapters", frontend="fe_2", reports=[make_report(adapter)])
    (later,) = (await registry.get("voice", wait=Duration(seconds=20))).engines

    assert (first.frontend, first.address, first.state) == ("fe_1", "host:1", FAILED)
    assert (first.reason, first.problem) == ("ADAPTER_INVALID", "it")
    assert (later.frontend, later.state) == ("fe_2", READY)


async def test_an_adapter_is_ready_when_every_frontend_has_loaded_it(
    running: RunningControl, registry: Registry
) -> None:
    """One without a report of it counts; one that is gone for two minutes does not."""
    await registry.call("ReportAdapters", frontend="fe_gone", reports=[])
    running.clock.advance(minutes=3)
    await registry.call("ReportAdapters", frontend="fe_2", reports=[])
    adapter = await registry.create()
    await send_reports(registry, make_report(adapter))
    early = await registry.get("voice")
    waiting = asyncio.create_task(registry.get("voice", wait=Duration(seconds=20)))
    for state in (LOADING, READY):
        assert not waiting.done()
        report = make_report(adapter, state=state)
        await registry.call("ReportAdapters", frontend="fe_2", reports=[report])

    assert (early.ready_frontend_count, early.frontend_count) == (1, 2)
    ready = await waiting
    assert (ready.ready_frontend_count, ready.frontend_count) == (2, 2)


async def test_an_adapter_is_gone_when_every_frontend_has_unloaded_it(
    registry: Registry,
) -> None:
    """A deletion says how many may still have it, and can wait for them."""
    for name in ("one", "two"):
        await registry.create(name=name)
    for frontend in ("fe_1", "fe_2"):
        await registry.call("ReportAdapters", frontend=frontend, revision="2", reports=[])
    early = await registry.call("DeleteAdapter", adapter="one")
    waiting = asyncio.create_task(
        registry.call("DeleteAdapter", adapter="two", wait=Duration(seconds=20))
    )
    for frontend, revision in (("fe_1", "4"), ("fe_2", "3"), ("fe_2", "4")):
        assert not waiting.done()
        await registry.call("ReportAdapters", frontend=frontend, revision=revision, reports=[])

    assert (early.pending_frontend_count, early.frontend_count) == (2, 2)
    late = await waiting
    assert (late.pending_frontend_count, late.frontend_count) == (0, 2)


async def test_watch_download_and_report_are_refused_to_a_project_caller(
    running: RunningControl,
) -> None:
    """Each raises ScopeMissing."""
    mine = Registry.of(running.of_project("mine"))
    adapter = await mine.create()

    with pytest.raises(errors.ScopeMissing):
        await anext(mine.watch())
    with pytest.raises(errors.ScopeMissing):
        await mine.download(adapter.sha256)
    with pytest.raises(errors.ScopeMissing):
        await send_reports(mine, make_report(adapter))


async def test_control_processes_on_one_database_notify_each_other(
    tmp_path: Path, postgres_url: str
) -> None:
    """A watch gets the other's new adapter, and a waiting Get returns on the other's report."""
    async with (
        run_control(tmp_path, postgres_url) as one,
        run_control(tmp_path, postgres_url) as two,
    ):
        first, second = (Registry.of(each.client, each.service_metadata) for each in (one, two))
        async with aclosing(second.watch()) as events:
            await anext(events)
            adapter = await first.create()
            change = await anext(events)
        waiting = asyncio.create_task(first.get("voice", wait=Duration(seconds=20)))
        await send_reports(second, make_report(adapter))

        assert [each.id for each in change.change.adapters] == [adapter.id]
        assert await second.download(adapter.sha256) == adapter_bytes()
        assert [each.state for each in (await waiting).engines] == [READY]


class MissingBlobs(FolderBlobs):
    """A blob store without blobs; `before_read` runs before each read fails."""

    def __init__(self, folder: Path, before_read: Callable[[], Awaitable[None]]) -> None:
        super().__init__(folder)
        self._before_read = before_read

    async def read(self, key: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        await self._before_read()
        raise errors.BlobMissing(blob=key)
        yield b""


@pytest.mark.parametrize(
    ("key_after", "error"),
    [
        ("two", errors.AdapterNotFound),
        (None, errors.AdapterNotFound),
        ("one", errors.BlobMissing),
    ],
)
async def test_bytes_deleted_during_a_download_are_not_found(
    tmp_path: Path, key_after: str | None, error: type[Exception]
) -> None:
    """A blob that is missing although its row still names it raises BlobMissing."""
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
        await database.transactions.of("p").write(lambda tx: AdapterQueries(tx).add(adapter))

        async def delete_or_replace() -> None:
            await database.transactions.of("p").write(
                lambda tx: AdapterQueries(tx).delete(adapter.id)
            )
            if key_after is not None:
                replacement = replace(adapter, blob_key=key_after)
                await database.transactions.of("p").write(
                    lambda tx: AdapterQueries(tx).add(replacement)
                )

        sync = AdapterSync(
            database.across_projects,
            MissingBlobs(tmp_path, delete_or_replace),
            database.notifications,
        )
        with pytest.raises(error):
            await anext(aiter(sync.download(digest)))


async def test_a_silent_watch_sends_heartbeats(tmp_path: Path) -> None:
    """Changes of nothing, with the same revision, which is no cursor of its own."""
    async with open_test_database(tmp_path) as database:
        sync = AdapterSync(
            database.across_projects,
            FolderBlobs(tmp_path),
            database.notifications,
            heartbeat_s=0.01,
        )
        async with aclosing(sync.watch("")) as events:
            state, *heartbeats = [await anext(events) for _ in range(3)]

    assert isinstance(state, DesiredState)
    assert heartbeats == [DesiredChange(state.revision, [], [])] * 2
