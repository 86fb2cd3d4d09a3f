"""ProjectService and KeyService on both databases."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import key_service_pb2, project_service_pb2
from corral.inference.v1 import generation_pb2

from control_svc.db.engine import FILE_NAME
from svc_kit import errors
from svc_kit.auth.keys import create_key, hash_key
from tests.support.control import Client, RunningControl, run_control
from tests.support.operators import ADMIN, INFERENCE, Operator, make_timestamp

ARCHIVED = project_service_pb2.Project.STATE_ARCHIVED


@pytest.fixture
def operator(running: RunningControl) -> Operator:
    return Operator.of(running)


async def test_projects_are_created_listed_and_archived(
    running: RunningControl, operator: Operator
) -> None:
    """The default project always exists; archiving a project again changes nothing."""
    research = await operator.create_project("research", display_name="Research")
    ops = await operator.create_project("ops")
    listed = await operator.list_projects()
    archived = await operator.archive("research")
    running.clock.advance(hours=1)
    again = await operator.archive("research")

    assert (research.display_name, ops.display_name) == ("Research", "ops")
    assert research.state == ops.state == project_service_pb2.Project.STATE_ACTIVE
    assert [project.id for project in listed.projects] == ["default", "ops", "research"]
    assert archived == again
    assert archived.state == ARCHIVED
    active = await operator.list_projects()
    all_projects = await operator.list_projects(show_archived=True)
    assert [project.id for project in active.projects] == ["default", "ops"]
    assert all_projects.projects[2] == archived


async def test_projects_are_listed_page_by_page(operator: Operator) -> None:
    """A page token is valid for its own list only."""
    for name in ("a", "b"):
        await operator.create_project(name)
    first = await operator.list_projects(page_size=2)
    second = await operator.list_projects(page_size=2, page_token=first.next_page_token)

    assert [project.id for project in (*first.projects, *second.projects)] == ["a", "b", "default"]
    assert second.next_page_token == ""
    with pytest.raises(errors.InvalidField, match="page_token"):
        await operator.list_projects(page_token=first.next_page_token, show_archived=True)


async def test_a_repeated_request_creates_one_project(operator: Operator) -> None:
    """With the same request id and contents; otherwise the second one fails."""
    first = await operator.create_project("a", request_id="one")

    assert await operator.create_project("a", request_id="one") == first
    with pytest.raises(errors.RequestIdReused):
        await operator.create_project("b", request_id="one")
    for request in ({}, {"request_id": "two"}):
        with pytest.raises(errors.ProjectExists):
            await operator.create_project("a", **request)


async def test_the_id_of_a_project_is_validated(operator: Operator) -> None:
    """It is used in metadata, logs and cursors. Errors name the field."""
    with pytest.raises(errors.MissingField) as missing:
        await operator.create_project("")
    assert missing.value.field == "project_id"
    for project_id in ("Red", "-red", "a" * 64, "a/b", "rot\x00"):
        with pytest.raises(errors.InvalidField, match="1 to 63 lower-case letters") as invalid:
            await operator.create_project(project_id)
        assert invalid.value.field == "project_id"
    with pytest.raises(errors.DomainError) as named:
        await operator.create_project("red", display_name="x\x00")
    assert named.value.field == "display_name"
    with pytest.raises(errors.DomainError) as repeated:
        await operator.create_project("red", request_id="x" * 1000)
    assert repeated.value.field == "request_id"


async def test_default_and_unknown_projects_cannot_be_archived(operator: Operator) -> None:
    """The default one is that of callers without a key; unknown ones are not found."""
    with pytest.raises(
        errors.InvalidField, match="it is the project of callers without a key"
    ) as refused:
        await operator.archive("default")
    assert refused.value.field == "project_id"
    for unknown in ("nobody", "\x00", "A"):
        with pytest.raises(errors.ProjectNotFound):
            await operator.archive(unknown)


async def test_the_secret_of_a_key_is_returned_once(operator: Operator) -> None:
    """A key that is read later contains its prefix only."""
    await operator.create_project("red")
    created = await operator.create_key("red", name="alice", scopes=[ADMIN, INFERENCE])
    key = await operator.get_key(created.key.id)

    assert key == created.key
    assert (key.project, key.name) == ("red", "alice")
    assert list(key.scopes) == [ADMIN, INFERENCE]
    assert key.priority == generation_pb2.PRIORITY_NORMAL
    assert created.secret.startswith(key.prefix)
    assert len(key.prefix) < 20
    assert created.secret not in str(key)


async def test_verify_key_returns_the_state_of_a_key(
    running: RunningControl, operator: Operator
) -> None:
    await operator.create_project("red")
    await operator.create_project("closed")
    in_five_minutes = make_timestamp(running.clock() + timedelta(minutes=5))
    valid = await operator.create_key("red", priority=generation_pb2.PRIORITY_BATCH)
    expiring = await operator.create_key(expire_time=in_five_minutes)
    revoked = await operator.create_key()
    archived = await operator.create_key("closed")
    await operator.revoke(revoked.key.id)
    await operator.archive("closed")
    key = (await operator.verify(valid.secret)).key
    verdicts = [
        await operator.verdict(each.secret) for each in (valid, expiring, revoked, archived)
    ]

    assert (key.project, key.priority) == ("red", generation_pb2.PRIORITY_BATCH)
    assert verdicts == [
        "VALID",
        "VALID",
        "REVOKED",
        "PROJECT_ARCHIVED",
    ]
    assert await operator.verdict(create_key()) == "UNKNOWN"
    running.clock.advance(minutes=5)
    assert await operator.verdict(expiring.secret) == "EXPIRED"


async def test_the_last_use_of_a_key_is_stored_once_a_minute(
    running: RunningControl, operator: Operator
) -> None:
    """The row is not updated by each verification."""
    created = await operator.create_key()
    await operator.verify(created.secret)
    first = (await operator.get_key(created.key.id)).last_use_time
    running.clock.advance(seconds=59)
    await operator.verify(created.secret)
    same = (await operator.get_key(created.key.id)).last_use_time
    running.clock.advance(seconds=1)
    await operator.verify(created.secret)
    later = (await operator.get_key(created.key.id)).last_use_time

    assert not created.key.HasField("last_use_time")
    assert first == same
    assert later.ToDatetime(UTC) - first.ToDatetime(UTC) == timedelta(minutes=1)


async def test_a_key_is_verified_while_others_write(tmp_path: Path) -> None:
    """Long before writes give up, after 30 seconds; its use is recorded afterwards."""
    async with run_control(tmp_path) as running:
        operator = Operator.of(running)
        created = await operator.create_key()
        database = tmp_path / "control" / FILE_NAME
        with closing(sqlite3.connect(database, check_same_thread=False)) as other:
            # In a thread: a transaction of the service may have to end on this loop first.
            await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
            async with asyncio.timeout(20):
                verdict = await operator.verdict(created.secret)
            unused = await operator.get_key(created.key.id)
        while not (key := await operator.get_key(created.key.id)).HasField("last_use_time"):
            pass

    assert verdict == "VALID"
    assert not unused.HasField("last_use_time")
    assert key.id == created.key.id


async def test_revoking_a_key_again_changes_nothing(
    running: RunningControl, operator: Operator
) -> None:
    """Lists contain revoked keys on request only."""
    first, second = await operator.create_key(), await operator.create_key()
    revoked = await operator.revoke(first.key.id)
    assert revoked.id == first.key.id
    running.clock.advance(hours=1)
    again = await operator.revoke(first.key.id)

    assert revoked == again
    listed = await operator.list_keys()
    all_keys = await operator.list_keys(show_revoked=True)
    assert [key.id for key in listed.keys] == [second.key.id]
    assert [key.id for key in all_keys.keys] == [second.key.id, first.key.id]


async def test_keys_are_listed_by_project_and_page(operator: Operator) -> None:
    """Newest first."""
    await operator.create_project("red")
    ids = [(await operator.create_key("red")).key.id for _ in range(3)]
    await operator.create_key()
    first = await operator.list_keys(project_id="red", page_size=2)
    second = await operator.list_keys(
        project_id="red", page_size=2, page_token=first.next_page_token
    )

    assert [key.id for key in (*first.keys, *second.keys)] == ids[::-1]
    with pytest.raises(errors.InvalidField, match="page_token"):
        await operator.list_keys(page_token=first.next_page_token)


async def test_a_repeated_request_creates_one_key(operator: Operator) -> None:
    """Only the first response has the secret, which is not stored."""
    first = await operator.create_key(name="a", request_id="one")
    again = await operator.create_key(name="a", request_id="one")

    assert (again.key, again.secret) == (first.key, "")
    assert await operator.verdict(first.secret) == "VALID"
    assert len((await operator.list_keys()).keys) == 1
    with pytest.raises(errors.RequestIdReused):
        await operator.create_key(name="b", request_id="one")


async def test_invalid_keys_are_refused(operator: Operator, subtests: pytest.Subtests) -> None:
    """No key is created."""
    cases: list[tuple[dict[str, Any], type[errors.DomainError]]] = [
        ({"name": ""}, errors.MissingField),
        ({"name": "x" * 256}, errors.TooLong),
        ({"name": "a\nb"}, errors.InvalidField),
        ({"project_id": "nobody"}, errors.ProjectNotFound),
        ({"project_id": "\x00"}, errors.ProjectNotFound),
        ({"scopes": [0]}, errors.MissingField),
        ({"scopes": [99]}, errors.InvalidField),
        ({"priority": 99}, errors.InvalidField),
        ({"expire_time": {"seconds": 1}}, errors.InvalidField),
        ({"expire_time": {"seconds": 2**62}}, errors.InvalidField),
        ({"request_id": "\x00"}, errors.InvalidField),
    ]
    for request, error in cases:
        with subtests.test(request=request), pytest.raises(error):
            await operator.create_key(**request)
    assert list((await operator.list_keys()).keys) == []


async def test_an_archived_project_gets_no_keys(operator: Operator) -> None:
    """Creating one fails."""
    await operator.create_project("red")
    await operator.archive("red")

    with pytest.raises(errors.ProjectArchived):
        await operator.create_key("red")


async def test_an_unknown_key_is_not_found(operator: Operator) -> None:
    """Nor is a malformed id."""
    for key_id in ("", "key_1", "\x00", "key_" + "0" * 32):
        for call in (operator.get_key, operator.revoke):
            with pytest.raises(errors.ApiKeyNotFound):
                await call(key_id)


async def test_concurrent_requests_create_keys(operator: Operator) -> None:
    """All are created, and concurrent repetitions of a request create one."""
    different = await asyncio.gather(*(operator.create_key(name=f"k{n}") for n in range(20)))
    same = await asyncio.gather(
        *(operator.create_key(name="same", request_id="one") for _ in range(5))
    )

    assert len({each.key.id for each in different}) == 20
    assert len({each.key.id for each in same}) == 1
    assert sorted(bool(each.secret) for each in same) == [False] * 4 + [True]


async def test_a_stored_key_authenticates_its_project(
    running: RunningControl, operator: Operator
) -> None:
    """Until it is revoked."""
    await operator.create_project("red")
    created = await operator.create_key("red")
    client = Client(running.client.channel, Operator.of(running, created.secret).metadata)
    file = await client.create(b"hello")

    assert await running.of_project("red").read(file.id) == b"hello"
    await operator.revoke(created.key.id)
    with pytest.raises(errors.ApiKeyRevoked):
        await client.get(file.id)


async def test_a_key_that_one_control_process_revokes_is_refused_by_another(
    tmp_path: Path, postgres_url: str
) -> None:
    """To callers, and to services that ask there."""
    async with (
        run_control(tmp_path, postgres_url) as one,
        run_control(tmp_path, postgres_url) as two,
    ):
        first, second = Operator.of(one), Operator.of(two)
        created = await first.create_key()
        user = Client(two.client.channel, Operator.of(two, created.secret).metadata)
        await user.page()
        before = await second.verdict(created.secret)
        await first.revoke(created.key.id)

        with pytest.raises(errors.ApiKeyRevoked):
            await user.page()
        assert (before, await second.verdict(created.secret)) == ("VALID", "REVOKED")


async def test_invalid_keys_raise_the_reason(running: RunningControl, operator: Operator) -> None:
    """Expired, of an archived project, or unknown."""
    await operator.create_project("red")
    red = await operator.create_key("red")
    expiring = await operator.create_key(
        expire_time=make_timestamp(running.clock() + timedelta(hours=1))
    )
    running.clock.advance(hours=1)
    await operator.archive("red")
    cases: list[tuple[str, type[errors.DomainError]]] = [
        (expiring.secret, errors.ApiKeyExpired),
        (red.secret, errors.ProjectArchived),
        (create_key(), errors.ApiKeyInvalid),
    ]
    for key, error in cases:
        client = Client(running.client.channel, Operator.of(running, key).metadata)
        with pytest.raises(error):
            await client.page()


async def test_operator_rpcs_need_the_scope_admin(
    running: RunningControl, operator: Operator
) -> None:
    """RPCs of services need the service token, which no key replaces."""
    user = Operator.of(running, (await operator.create_key()).secret)
    admin = Operator.of(running, (await operator.create_key(scopes=[ADMIN])).secret)

    assert (await admin.create_key(name="another")).secret
    for call in (user.create_key, user.list_keys, user.list_projects, user.list_usage):
        with pytest.raises(errors.ScopeMissing, match="admin"):
            await call()
    with pytest.raises(errors.ScopeMissing, match="service"):
        await admin.verify(create_key())
    with pytest.raises(errors.ScopeMissing, match="service"):
        await admin.report("one")


async def test_a_malformed_hash_is_refused(operator: Operator) -> None:
    """The error names the field."""
    for sha256, error in (
        ("", errors.MissingField),
        ("x", errors.InvalidField),
        ("\x00" * 64, errors.InvalidField),
    ):
        request = key_service_pb2.VerifyKeyRequest(sha256=sha256)
        with pytest.raises(error, match="sha256"):
            await operator.call(operator.keys.VerifyKey, request)


async def test_a_new_key_reports_that_keyless_callers_are_served(tmp_path: Path) -> None:
    """On loopback callers without a key are served, but presented keys are verified."""
    async with run_control(tmp_path) as running:
        keyless = Operator(running.client.channel)
        created = await keyless.create_key()
        with_key = Client(running.client.channel, Operator.of(running, created.secret).metadata)
        await with_key.page()
        await running.client.page()
        await keyless.revoke(created.key.id)
        with pytest.raises(errors.ApiKeyRevoked):
            await with_key.page()

    assert created.serves_keyless_callers


async def test_callers_without_a_key_are_refused_if_keys_are_required(tmp_path: Path) -> None:
    """The first key is created with the service token."""
    async with run_control(tmp_path, require_keys=True) as running:
        created = await Operator.of(running).create_key()
        with_key = Client(running.client.channel, Operator.of(running, created.secret).metadata)
        await with_key.page()
        with pytest.raises(errors.DomainError, match="didn't provide an API key"):
            await running.client.page()

    assert not created.serves_keyless_callers
    assert hash_key(created.secret) not in str(created)
