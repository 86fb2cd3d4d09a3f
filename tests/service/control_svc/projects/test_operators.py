"""Projects and keys, as operators keep them and services ask for them, on both databases."""

import asyncio
from datetime import UTC, timedelta
from typing import Any

import pytest
from corral.control.v1 import project_service_pb2
from corral.inference.v1 import generation_pb2

from svc_kit.auth.keys import create_key, hash_key
from svc_kit.errors import (
    ApiKeyExpired,
    ApiKeyInvalid,
    ApiKeyNotFound,
    ApiKeyRevoked,
    DomainError,
    InvalidField,
    MissingField,
    ProjectArchived,
    ProjectExists,
    ProjectNotFound,
    RequestIdReused,
    ScopeMissing,
    TooLong,
)
from tests.support.control import Client, RunningControl, a_control
from tests.support.operators import ADMIN, INFERENCE, Operator, stamp

ARCHIVED = project_service_pb2.Project.STATE_ARCHIVED


@pytest.fixture
def operator(running: RunningControl) -> Operator:
    """One of our own services, which may do what operators may."""
    return Operator.of(running)


# ---- projects


async def test_a_project_is_made_shown_and_archived(operator: Operator) -> None:
    """The default one is there from the start; archiving again changes nothing."""
    made = await operator.create_project("research", display_name="Research")
    plain = await operator.create_project("ops")
    listed = await operator.list_projects()
    archived = await operator.archive("research")
    again = await operator.archive("research")

    assert (made.display_name, plain.display_name) == ("Research", "ops")
    assert [project.id for project in listed.projects] == ["default", "ops", "research"]
    assert archived == again
    assert archived.state == ARCHIVED
    left = await operator.list_projects()
    everything = await operator.list_projects(show_archived=True)
    assert [project.id for project in left.projects] == ["default", "ops"]
    assert everything.projects[2] == archived


async def test_projects_are_listed_page_by_page(operator: Operator) -> None:
    """Each token belongs to its own list."""
    for name in ("a", "b"):
        await operator.create_project(name)
    first = await operator.list_projects(page_size=2)
    second = await operator.list_projects(page_size=2, page_token=first.next_page_token)

    assert [project.id for project in (*first.projects, *second.projects)] == ["a", "b", "default"]
    assert second.next_page_token == ""
    with pytest.raises(InvalidField, match="page_token"):
        await operator.list_projects(page_token=first.next_page_token, show_archived=True)


async def test_a_project_asked_for_twice_is_made_once(operator: Operator) -> None:
    """With the same request id; without one, or with another request, the second is refused."""
    first = await operator.create_project("a", request_id="one")

    assert await operator.create_project("a", request_id="one") == first
    with pytest.raises(RequestIdReused):
        await operator.create_project("b", request_id="one")
    for request in ({}, {"request_id": "two"}):
        with pytest.raises(ProjectExists):
            await operator.create_project("a", **request)


@pytest.mark.parametrize(
    ("project_id", "error"),
    [
        ("", MissingField),
        ("Red", InvalidField),
        ("-red", InvalidField),
        ("a" * 64, InvalidField),
        ("a/b", InvalidField),
        ("rot\x00", InvalidField),
    ],
)
async def test_the_id_of_a_project_is_plain(
    operator: Operator, project_id: str, error: type[DomainError]
) -> None:
    """It becomes part of metadata, logs and cursors."""
    with pytest.raises(error):
        await operator.create_project(project_id)


async def test_the_default_project_stays_and_unknown_ones_are_not_found(
    operator: Operator,
) -> None:
    """Callers without a key belong to it."""
    with pytest.raises(InvalidField, match="cannot be archived"):
        await operator.archive("default")
    for unknown in ("nobody", "\x00", "A"):
        with pytest.raises(ProjectNotFound):
            await operator.archive(unknown)


# ---- keys


async def test_a_key_is_shown_once_and_kept_as_a_hash(operator: Operator) -> None:
    """Everything that is told of it later leaves it out."""
    await operator.create_project("red")
    made = await operator.create_key("red", name="alice", scopes=[ADMIN, INFERENCE])
    found = await operator.get_key(made.key.id)

    assert found == made.key
    assert (found.project, found.name) == ("red", "alice")
    assert list(found.scopes) == [ADMIN, INFERENCE]
    assert found.priority == generation_pb2.PRIORITY_NORMAL
    assert made.secret.startswith(found.prefix)
    assert len(found.prefix) < 20
    assert made.secret not in str(found)


async def test_a_service_is_told_what_a_key_may_do(
    running: RunningControl, operator: Operator
) -> None:
    """A key that may be used, and each reason why one may not."""
    await operator.create_project("red")
    await operator.create_project("closed")
    end = running.clock() + timedelta(minutes=5)
    good = await operator.create_key("red", priority=generation_pb2.PRIORITY_BATCH)
    late = await operator.create_key(expire_time=stamp(end))
    gone = await operator.create_key()
    closed = await operator.create_key("closed")
    await operator.revoke(gone.key.id)
    await operator.archive("closed")
    answer = await operator.verify(good.secret)

    assert (answer.key.project, answer.key.priority) == ("red", generation_pb2.PRIORITY_BATCH)
    assert [await operator.verdict(key.secret) for key in (good, late, gone, closed)] == [
        "VALID",
        "VALID",
        "REVOKED",
        "PROJECT_ARCHIVED",
    ]
    assert await operator.verdict(create_key()) == "UNKNOWN"
    running.clock.advance(minutes=5)
    assert await operator.verdict(late.secret) == "EXPIRED"


async def test_the_use_of_a_key_is_noted_now_and_then(
    running: RunningControl, operator: Operator
) -> None:
    """To within a minute: a row is not written for each question."""
    made = await operator.create_key()
    await operator.verify(made.secret)
    first = (await operator.get_key(made.key.id)).last_use_time
    running.clock.advance(seconds=59)
    await operator.verify(made.secret)
    same = (await operator.get_key(made.key.id)).last_use_time
    running.clock.advance(seconds=1)
    await operator.verify(made.secret)
    later = (await operator.get_key(made.key.id)).last_use_time

    assert not made.key.HasField("last_use_time")
    assert first == same
    assert later.ToDatetime(UTC) - first.ToDatetime(UTC) == timedelta(minutes=1)


async def test_a_revoked_key_stays_revoked_at_its_first_time(
    running: RunningControl, operator: Operator
) -> None:
    """Revoking is idempotent; lists leave such keys out unless they are asked for."""
    first, second = await operator.create_key(), await operator.create_key()
    revoked = await operator.revoke(first.key.id)
    running.clock.advance(hours=1)
    again = await operator.revoke(first.key.id)

    assert revoked == again
    listed = await operator.list_keys()
    everything = await operator.list_keys(show_revoked=True)
    assert [key.id for key in listed.keys] == [second.key.id]
    assert [key.id for key in everything.keys] == [second.key.id, first.key.id]


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
    with pytest.raises(InvalidField, match="page_token"):
        await operator.list_keys(page_token=first.next_page_token)


async def test_a_key_asked_for_twice_is_made_once_and_shown_once(operator: Operator) -> None:
    """Its secret is not kept, so a repeated request cannot show it."""
    first = await operator.create_key(name="a", request_id="one")
    again = await operator.create_key(name="a", request_id="one")

    assert (again.key, again.secret) == (first.key, "")
    assert await operator.verdict(first.secret) == "VALID"
    assert len((await operator.list_keys()).keys) == 1
    with pytest.raises(RequestIdReused):
        await operator.create_key(name="b", request_id="one")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"name": ""}, MissingField),
        ({"name": "x" * 256}, TooLong),
        ({"name": "a\nb"}, InvalidField),
        ({"project_id": "nobody"}, ProjectNotFound),
        ({"project_id": "\x00"}, ProjectNotFound),
        ({"scopes": [0]}, InvalidField),
        ({"scopes": [99]}, InvalidField),
        ({"priority": 99}, InvalidField),
        ({"expire_time": {"seconds": 1}}, InvalidField),
        ({"expire_time": {"seconds": 2**62}}, InvalidField),
        ({"request_id": "\x00"}, InvalidField),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(
    operator: Operator, request_: dict[str, Any], error: type[DomainError]
) -> None:
    """Each with the field that is at fault; nothing is made."""
    with pytest.raises(error):
        await operator.create_key(**request_)
    assert list((await operator.list_keys()).keys) == []


async def test_an_archived_project_gets_no_keys(operator: Operator) -> None:
    """Nor do the ones it has work."""
    await operator.create_project("red")
    await operator.archive("red")

    with pytest.raises(ProjectArchived):
        await operator.create_key("red")


@pytest.mark.parametrize("key_id", ["", "key_1", "\x00", "key_" + "0" * 32])
async def test_an_unknown_key_is_not_found(operator: Operator, key_id: str) -> None:
    """Whatever was written for its id."""
    for call in (operator.get_key, operator.revoke):
        with pytest.raises(ApiKeyNotFound):
            await call(key_id)


async def test_many_keys_and_projects_at_once_are_all_made(operator: Operator) -> None:
    """Writers wait for one another, and the same request is carried out once."""
    made = await asyncio.gather(*(operator.create_key(name=f"k{n}") for n in range(20)))
    same = await asyncio.gather(
        *(operator.create_key(name="same", request_id="one") for _ in range(5))
    )

    assert len({each.key.id for each in made}) == 20
    assert len({each.key.id for each in same}) == 1
    assert sorted(bool(each.secret) for each in same) == [False] * 4 + [True]


# ---- keys at the control service itself


async def test_a_stored_key_reaches_its_project_at_control(
    running: RunningControl, operator: Operator
) -> None:
    """The service looks into its own database, and a revoked key ends at once."""
    await operator.create_project("red")
    made = await operator.create_key("red")
    client = Client(running.client.channel, Operator.of(running, made.secret).metadata)
    file = await client.create(b"hello")
    others = running.of_project("red")

    assert await others.read(file.id) == b"hello"
    await operator.revoke(made.key.id)
    with pytest.raises(ApiKeyRevoked):
        await client.get(file.id)


async def test_control_tells_why_a_key_is_refused(
    running: RunningControl, operator: Operator
) -> None:
    """Expired, of an archived project, unknown."""
    await operator.create_project("red")
    red = await operator.create_key("red")
    late = await operator.create_key(expire_time=stamp(running.clock() + timedelta(hours=1)))
    running.clock.advance(hours=1)
    await operator.archive("red")
    refused: list[tuple[str, type[DomainError]]] = [
        (late.secret, ApiKeyExpired),
        (red.secret, ProjectArchived),
        (create_key(), ApiKeyInvalid),
    ]
    for key, error in refused:
        client = Client(running.client.channel, Operator.of(running, key).metadata)
        with pytest.raises(error):
            await client.page()


async def test_operators_rpcs_take_the_scope_admin_and_services_are_apart(
    running: RunningControl, operator: Operator
) -> None:
    """A key for inference makes no keys; a key for all that keys can hold is still no service."""
    user = Operator.of(running, (await operator.create_key()).secret)
    admin = Operator.of(running, (await operator.create_key(scopes=[ADMIN])).secret)

    assert (await admin.create_key(name="another")).secret
    for call in (user.create_key, user.list_keys, user.list_projects, user.list_usage):
        with pytest.raises(ScopeMissing, match="admin"):
            await call()
    with pytest.raises(ScopeMissing, match="service"):
        await admin.verify(create_key())
    with pytest.raises(ScopeMissing, match="service"):
        await admin.report("one")


async def test_whoever_asks_with_nonsense_is_told_the_field(operator: Operator) -> None:
    """A hash is a hash."""
    from corral.control.v1 import key_service_pb2

    from svc_kit.rpc.client import translate_errors

    for sha256, error in (("", MissingField), ("x", InvalidField), ("\x00" * 64, InvalidField)):
        request = key_service_pb2.VerifyKeyRequest(sha256=sha256)
        with pytest.raises(error, match="sha256"), translate_errors():
            await operator.keys.VerifyKey(request, metadata=operator.metadata)


async def test_a_keyless_control_service_says_so_when_a_key_is_made(tmp_path: Any) -> None:
    """On loopback without keys in the settings everybody is served, with and without a key; keys
    of ours are verified all the same."""
    async with a_control(tmp_path) as running:
        keyless = Operator(running.client.channel)
        made = await keyless.create_key()
        with_key = Client(running.client.channel, Operator.of(running, made.secret).metadata)
        await with_key.page()
        await running.client.page()
        await keyless.revoke(made.key.id)
        with pytest.raises(ApiKeyRevoked):
            await with_key.page()

    assert made.serves_keyless_callers


async def test_where_keys_are_required_nobody_comes_without_one(tmp_path: Any) -> None:
    """The first key is made by whoever can read the installation's token."""
    async with a_control(tmp_path, require_keys=True) as running:
        made = await Operator.of(running).create_key()
        with_key = Client(running.client.channel, Operator.of(running, made.secret).metadata)
        await with_key.page()
        with pytest.raises(DomainError, match="didn't provide an API key"):
            await running.client.page()

    assert not made.serves_keyless_callers
    assert hash_key(made.secret) not in str(made)
