"""The audit log of administration, on both databases."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import pytest
from corral.control.v1 import audit_service_pb2 as pb
from corral.control.v1 import key_service_pb2, limit_service_pb2
from corral.control.v1.audit_service_pb2_grpc import AuditServiceStub
from corral.control.v1.limit_service_pb2_grpc import LimitServiceStub
from pydantic import ValidationError

from control_svc.config import ControlSettings
from svc_kit.auth.scopes import Scope
from svc_kit.errors import ApiKeyInvalid, ApiKeyNotFound, InvalidField, LimitExists, ScopeMissing
from tests.support.control import RunningControl, run_control
from tests.support.operators import ADMIN, Operator, make_timestamp
from tools.rpc_methods import METHODS

LIMIT: Final = limit_service_pb2.Limit(
    id="slow",
    unit=limit_service_pb2.Limit.UNIT_REQUESTS,
    period=limit_service_pb2.Limit.PERIOD_MINUTE,
    amount=5,
)


@pytest.fixture
def operator(running: RunningControl) -> Operator:
    return Operator.of(running)


async def events(operator: Operator, **filters: Any) -> list[pb.AuditEvent]:
    stub = AuditServiceStub(operator.channel)
    request = pb.ListAuditEventsRequest(**filters)
    return list((await operator.call(stub.ListAuditEvents, request)).events)


async def test_an_act_has_who_what_when_and_from_where(
    running: RunningControl, operator: Operator
) -> None:
    """Who is the key, what is the method, the object and the request, and no secret is stored."""
    boss = await operator.create_key(name="boss", scopes=[ADMIN])
    by_boss = Operator.of(running, boss.secret)
    running.clock.advance(seconds=1)
    made = await by_boss.create_key(name="ci", networks=["10.0.0.0/8"])
    (event, before) = await events(operator)

    assert (event.actor, event.project) == (boss.key.id, "default")
    assert (event.method, event.target) == ("KeyService/CreateKey", made.key.id)
    assert json.loads(event.request) == {
        "name": "ci",
        "networks": ["10.0.0.0/8"],
        "allowUnknown": True,
    }
    assert event.time.ToDatetime(UTC) == running.clock()
    assert event.address in ("127.0.0.1", "::1")
    assert event.request_id.startswith("req_")
    assert (before.actor, before.target) == ("service", boss.key.id)
    assert made.secret not in str(event)


async def test_every_method_for_operators_leaves_an_event(
    running: RunningControl, operator: Operator
) -> None:
    """A method that is added to the scope admin needs a case here."""
    limits = LimitServiceStub(operator.channel)
    made = await operator.create_key()
    rotation = key_service_pb2.RotateKeyRequest(key_id=made.key.id)
    changed = limit_service_pb2.Limit(id="slow", amount=6)
    update = limit_service_pb2.UpdateLimitRequest(limit=changed)
    update.update_mask.paths.append("amount")
    cases: dict[str, Callable[[], Awaitable[Any]]] = {
        "ProjectService/CreateProject": lambda: operator.create_project("red"),
        "ProjectService/ArchiveProject": lambda: operator.archive("red"),
        "KeyService/CreateKey": operator.create_key,
        "KeyService/RotateKey": lambda: operator.call(operator.keys.RotateKey, rotation),
        "KeyService/RevokeKey": lambda: operator.revoke(made.key.id),
        "LimitService/CreateLimit": lambda: operator.call(
            limits.CreateLimit, limit_service_pb2.CreateLimitRequest(limit=LIMIT)
        ),
        "LimitService/UpdateLimit": lambda: operator.call(limits.UpdateLimit, update),
        "LimitService/DeleteLimit": lambda: operator.call(
            limits.DeleteLimit, limit_service_pb2.DeleteLimitRequest(limit_id="slow")
        ),
    }
    for method, act in cases.items():
        running.clock.advance(seconds=1)
        await act()
        assert (await events(operator))[0].method == method

    prefix = "/corral.control.v1."
    for_operators = {
        name.removeprefix(prefix)
        for name, options in METHODS.items()
        if options.scope is Scope.ADMIN and name.startswith(prefix)
    }
    assert for_operators == {*cases, "JobService/RetryJob"}  # in jobs/test_job_service.py


async def test_an_act_that_fails_and_one_that_is_repeated_leave_no_event(
    operator: Operator,
) -> None:
    """Neither changes anything."""
    await operator.create_key(request_id="one")
    await operator.create_key(request_id="one")
    with pytest.raises(ApiKeyNotFound):
        await operator.revoke("key_1")
    assert [event.method for event in await events(operator)] == ["KeyService/CreateKey"]


async def test_events_are_filtered_and_paged(running: RunningControl, operator: Operator) -> None:
    """By actor, target and time; a page token is valid for its own list only."""
    boss = await operator.create_key(scopes=[ADMIN])
    by_boss = Operator.of(running, boss.secret)
    running.clock.advance(days=1)
    middle = make_timestamp(running.clock())
    made = await by_boss.create_key()
    running.clock.advance(days=1)
    await operator.revoke(made.key.id)

    def targets(found: list[pb.AuditEvent]) -> list[tuple[str, str]]:
        return [(event.method.partition("/")[2], event.target) for event in found]

    create, revoke = ("CreateKey", made.key.id), ("RevokeKey", made.key.id)
    assert targets(await events(operator, actor=boss.key.id)) == [create]
    assert targets(await events(operator, target=made.key.id)) == [revoke, create]
    assert targets(await events(operator, start_time=middle)) == [revoke, create]
    assert targets(await events(operator, end_time=middle)) == [("CreateKey", boss.key.id)]
    stub = AuditServiceStub(operator.channel)
    first = await operator.call(stub.ListAuditEvents, pb.ListAuditEventsRequest(page_size=2))
    rest = await events(operator, page_size=2, page_token=first.next_page_token)
    assert targets([*first.events, *rest]) == [revoke, create, ("CreateKey", boss.key.id)]
    with pytest.raises(InvalidField, match="page_token"):
        await events(operator, actor="x", page_token=first.next_page_token)
    with pytest.raises(InvalidField, match="target"):
        await events(operator, target="a\x00")


async def test_only_operators_read_the_log(running: RunningControl, operator: Operator) -> None:
    reader = await operator.create_key(scopes=[key_service_pb2.KEY_SCOPE_ADMIN_READ])
    user = await operator.create_key()

    assert await events(Operator.of(running, reader.secret))
    with pytest.raises(ScopeMissing):
        await events(Operator.of(running, user.secret))


async def test_an_act_that_is_rolled_back_leaves_no_event(
    operator: Operator,
) -> None:
    """The event is in its transaction: a limit that exists already is not created again."""
    stub = LimitServiceStub(operator.channel)
    request = limit_service_pb2.CreateLimitRequest(limit=LIMIT)
    await operator.call(stub.CreateLimit, request)
    with pytest.raises(LimitExists):
        await operator.call(stub.CreateLimit, request)
    assert len(await events(operator)) == 1


async def test_refused_calls_are_events_too(running: RunningControl, operator: Operator) -> None:
    """With who and why, once in ten minutes for each method: a key cannot fill the log."""
    tenant = await operator.create_key(name="app")
    by_tenant = Operator.of(running, tenant.secret)
    for _ in range(3):
        with pytest.raises(ScopeMissing):
            await by_tenant.create_key()
    with pytest.raises(ScopeMissing):
        await by_tenant.revoke("key_1")
    refused = [event for event in await events(operator) if event.refusal]

    assert sorted(event.method for event in refused) == [
        *("KeyService/CreateKey", "KeyService/RevokeKey")
    ]
    assert {(event.actor, event.refusal) for event in refused} == {(tenant.key.id, "SCOPE_MISSING")}
    assert {(event.target, event.request) for event in refused} == {("", "")}
    assert refused[0].address in ("127.0.0.1", "::1")


async def test_calls_without_a_valid_key_leave_no_event(tmp_path: Path) -> None:
    """They cost no row: anybody can make them."""
    async with run_control(tmp_path, require_keys=True) as running:
        operator = Operator.of(running)
        for wrong in ("sk-nobody", f"sk-corral-{'x' * 43}"):
            with pytest.raises(ApiKeyInvalid):
                await Operator.of(running, wrong).create_key()
        assert await events(operator) == []


@pytest.mark.parametrize("kind", [socket.AF_INET, socket.AF_UNIX])
async def test_events_are_sent_to_syslog_once_they_are_committed(
    tmp_path: Path, kind: socket.AddressFamily
) -> None:
    """One line of JSON each, to a host or to the socket of the machine."""
    with socket.socket(kind, socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0) if kind == socket.AF_INET else str(tmp_path / "log"))
        syslog.settimeout(20)
        name = syslog.getsockname()
        target = f"{name[0]}:{name[1]}" if kind == socket.AF_INET else name
        async with run_control(tmp_path / "control", audit_syslog=target) as running:
            operator = Operator.of(running)
            made = await operator.create_key()
            running.clock.advance(seconds=1)
            with pytest.raises(ApiKeyNotFound):
                await operator.revoke("key_1")
            await operator.revoke(made.key.id)
            lines = [await asyncio.to_thread(syslog.recv, 65536) for _ in range(2)]
            stored = await events(operator)

    sent = [json.loads(line.rstrip(b"\0").partition(b"corral-audit: ")[2]) for line in lines]
    assert [(each["id"], each["method"], each["target"]) for each in reversed(sent)] == [
        (event.id, event.method, event.target) for event in stored
    ]


def test_a_target_of_syslog_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="audit_syslog"):
        ControlSettings(audit_syslog="syslog.example.com")
