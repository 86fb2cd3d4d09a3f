"""Acts of operators on the inference service, in the audit log of a real control service."""

import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from corral.control.v1 import audit_service_pb2 as pb
from corral.control.v1.audit_service_pb2_grpc import AuditServiceStub
from corral.inference.v1 import engine_service_pb2 as engine_pb
from google.protobuf.message import Message

from inference_svc.audit import AuditReporter
from inference_svc.delivery import make_sender
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.errors import InvalidField, MissingField, TooLong, UpstreamUnavailable
from svc_kit.rpc.admin_call import AdminCall
from svc_kit.rpc.client import open_channel
from tests.support.control import RunningControl, run_control
from tests.support.operators import Operator, make_timestamp

LOAD = engine_pb.LoadModelRequest(model="large")


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[RunningControl]:
    async with run_control(tmp_path / "control") as running:
        yield running


class Reporting:
    """A reporter whose calls of the control service can fail before or after they arrive."""

    def __init__(self, folder: Path, channel: Any, **options: Any) -> None:
        self.is_away = self.loses_answers = False
        self._send = make_sender(AuditServiceStub(channel).ReportAuditEvents)
        self.reporter = AuditReporter(folder, self.send, **options)

    async def send(self, request: pb.ReportAuditEventsRequest) -> None:
        if not self.is_away:
            await self._send(request)
        if self.is_away or self.loses_answers:
            raise UpstreamUnavailable(service="control")

    async def act(self, name: str, request: Message, key: str = "key_1") -> None:
        set_principal(Principal(project="ops", scopes=frozenset({"admin"}), key_id=key))
        method = f"/corral.inference.v1.EngineService/{name}"
        await self.reporter.record(AdminCall(method, "ipv4:10.0.0.7:5000", request))


@pytest.fixture
async def reporting(tmp_path: Path, control: RunningControl) -> AsyncIterator[Reporting]:
    token = (control.folder / "token").read_text().strip()
    async with open_channel(control.target, token=token) as channel:
        yield Reporting(tmp_path / "acts", channel)


async def listed(control: RunningControl) -> list[pb.AuditEvent]:
    """All events, newest first."""
    operator = Operator.of(control)
    stub = AuditServiceStub(operator.channel)
    return list((await operator.call(stub.ListAuditEvents, pb.ListAuditEventsRequest())).events)


async def test_an_act_is_added_with_who_what_when_and_from_where(
    control: RunningControl, reporting: Reporting
) -> None:
    """In the order of the acts; what control does with the service on its own behalf is none."""
    await reporting.act("LoadModel", LOAD)
    await reporting.act("DropSnapshots", engine_pb.DropSnapshotsRequest(), key="service")
    await reporting.act("Drain", engine_pb.DrainRequest())
    await reporting.reporter.report()
    drain, load = await listed(control)

    assert (load.actor, load.project, load.address) == ("key_1", "ops", "10.0.0.7")
    assert (load.method, load.target) == ("EngineService/LoadModel", "large")
    assert json.loads(load.request) == {"model": "large"}
    assert load.id.startswith("audit_")
    assert datetime.now(UTC) - load.time.ToDatetime(UTC) < timedelta(minutes=1)
    assert drain.method == "EngineService/Drain"


async def test_an_act_survives_outages_and_is_added_once(
    tmp_path: Path, control: RunningControl, reporting: Reporting
) -> None:
    """It waits in its file, also for the next process; a report whose answer is lost is sent
    again."""
    reporting.is_away = True
    await reporting.act("LoadModel", LOAD)
    await reporting.reporter.report()
    assert await listed(control) == []
    reporting.is_away, reporting.loses_answers = False, True
    await reporting.reporter.report()
    (act,) = await listed(control)
    reporting.loses_answers = False
    await AuditReporter(tmp_path / "acts", reporting.send).report()

    assert await listed(control) == [act]
    assert list((tmp_path / "acts").iterdir()) == []


async def test_waiting_acts_are_bounded(
    tmp_path: Path, reporting: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    """Further ones are in the log alone; the act itself succeeds."""
    reporting.reporter = AuditReporter(tmp_path / "acts", reporting.send, max_waiting=2)
    for _ in range(3):
        await reporting.act("LoadModel", LOAD)

    assert len(list((tmp_path / "acts").iterdir())) == 2
    assert "an act is not in the audit log: 2 acts wait for the control service" in caplog.text


async def test_an_invalid_report_is_refused(control: RunningControl) -> None:
    """With the name of the field, and nothing of it is stored."""
    operator = Operator.of(control)
    report = AuditServiceStub(operator.channel).ReportAuditEvents
    time = make_timestamp(datetime.now(UTC))
    fields: dict[str, Any] = {
        "id": "1",
        "time": time,
        "actor": "a",
        "project": "p",
        "method": "m",
    }
    valid = pb.AuditEvent(**fields)
    for events, error in (
        ([], MissingField),
        ([valid] * 101, TooLong),
        ([valid, pb.AuditEvent(**fields | {"actor": ""})], MissingField),
        ([valid, pb.AuditEvent(**fields | {"id": "1" * 65})], TooLong),
        ([valid, pb.AuditEvent(**fields | {"target": "a\nb"})], InvalidField),
    ):
        with pytest.raises(error):
            await operator.call(report, pb.ReportAuditEventsRequest(events=events))

    assert await listed(control) == []


async def test_a_refused_call_is_reported_with_its_reason(
    reporting: Reporting, control: RunningControl
) -> None:
    """It has no request, which was not read."""
    set_principal(Principal(project="red", scopes=frozenset({"inference"}), key_id="key_2"))
    method = "/corral.inference.v1.EngineService/LoadModel"
    refused = AdminCall(method, "ipv4:10.0.0.7:5000", None, "SCOPE_MISSING")
    await reporting.reporter.record(refused)
    await reporting.reporter.report()
    operator = Operator.of(control)
    stub = AuditServiceStub(operator.channel)
    (event,) = (await operator.call(stub.ListAuditEvents, pb.ListAuditEventsRequest())).events

    assert (event.actor, event.method) == ("key_2", "EngineService/LoadModel")
    assert (event.refusal, event.request, event.target) == ("SCOPE_MISSING", "", "")


def test_drafts_of_acts_that_killed_processes_left_are_deleted(tmp_path: Path) -> None:
    draft = tmp_path / f"{'0' * 20}-00000000-0000-4000-8000-000000000000.act.0123abcd.part"
    draft.touch()
    os.utime(draft, (0, 0))
    AuditReporter(tmp_path, make_sender(AsyncMock()))

    assert not draft.exists()
