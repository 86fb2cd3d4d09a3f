"""Limits and keys for projects, keys and models that do not exist; limits of a new key."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import key_service_pb2 as key_pb
from corral.control.v1 import limit_service_pb2 as pb

from svc_kit import errors
from tests.support.control import RunningControl, run_control, write_service_token
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_inference_service
from tests.support.operators import Operator, make_limit

GENERATE = key_pb.KEY_SCOPE_GENERATE


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    async with (
        run_inference_service(
            FakeInference(), service_token_file=write_service_token(tmp_path)
        ) as inference,
        run_control(tmp_path, inference_target=str(inference.address)) as running,
    ):
        operator = Operator.of(running)
        await operator.create_project("red")
        yield operator


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"project": "rde"}, errors.ProjectNotFound),
        ({"project": "red", "model": "faek"}, errors.ModelNotFound),
        ({"key": "key_" + "0" * 32}, errors.ApiKeyNotFound),
        ({"project": "red", "model": "fake"}, None),
        ({"project": "default", "key": "a name in the settings"}, None),
    ],
    ids=str,
)
async def test_a_limit_of_what_does_not_exist_is_refused_unless_allowed(
    operator: Operator, fields: dict[str, str], error: type[errors.DomainError] | None
) -> None:
    """It would limit nothing, and nobody would notice."""
    limit = make_limit("one", "REQUESTS", 5, **fields)

    async def create(**request: Any) -> None:
        message = pb.CreateLimitRequest(limit=limit, **request)
        await operator.call(operator.limits.CreateLimit, message)

    if error is None:
        await create()
        return
    with pytest.raises(error):
        await create()
    await create(allow_unknown=True)


async def test_a_key_for_a_model_that_does_not_exist_is_refused_unless_allowed(
    operator: Operator,
) -> None:
    """It could do nothing."""
    request: dict[str, Any] = {"scopes": [GENERATE], "models": ["fake", "faek"]}
    with pytest.raises(errors.ModelNotFound, match="faek"):
        await operator.create_key("red", allow_unknown=False, **request)
    await operator.create_key("red", allow_unknown=True, **request)
    await operator.create_key("red", allow_unknown=False, scopes=[GENERATE], models=["fake"])


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"project": "rde"}, errors.ProjectNotFound), ({"model": "faek"}, errors.ModelNotFound)],
    ids=str,
)
async def test_a_limit_of_a_new_key_is_refused_as_others_are(
    operator: Operator, fields: dict[str, str], error: type[errors.DomainError]
) -> None:
    """Unless what does not exist is allowed."""
    request: dict[str, Any] = {"limits": [make_limit("", "REQUESTS", 5, **fields)]}
    with pytest.raises(error):
        await operator.create_key("red", allow_unknown=False, **request)
    await operator.create_key("red", allow_unknown=True, **request)


async def test_models_of_a_key_are_looked_up_last(running: RunningControl) -> None:
    """An invalid or a repeated request does not need the inference service."""
    operator = Operator.of(running)
    request: dict[str, Any] = {"scopes": [GENERATE], "models": ["demo"], "request_id": "one"}
    created = await operator.create_key(**request)
    repeated = await operator.create_key(allow_unknown=False, **request)
    assert repeated.key.id == created.key.id
    with pytest.raises(errors.RequestIdReused):
        await operator.create_key(allow_unknown=False, name="other", **request)
    with pytest.raises(errors.InvalidField):
        await operator.create_key(allow_unknown=False, models=["demo"])
    with pytest.raises(errors.TooLong):
        await operator.create_key(allow_unknown=False, scopes=[GENERATE], models=["m"] * 101)


async def test_models_cannot_be_checked_without_the_inference_service(
    running: RunningControl,
) -> None:
    """That is no fault of the caller."""
    operator = Operator.of(running)
    limit = make_limit("one", "REQUESTS", 5, model="demo")
    with pytest.raises(errors.UpstreamUnavailable):
        await operator.call(operator.limits.CreateLimit, pb.CreateLimitRequest(limit=limit))


async def test_a_key_has_its_limits_from_the_start(operator: Operator) -> None:
    """They are created with it or not at all, once for each request id."""
    budget = make_limit("", "COST", 25 * 10**9, "MONTH")
    soft = make_limit("warning", "COST", 20 * 10**9, "MONTH", mode=pb.Limit.MODE_SHADOW)
    request: dict[str, Any] = {"request_id": "one", "limits": [budget, soft]}
    key = (await operator.create_key("red", **request)).key
    await operator.create_key("red", **request)
    with pytest.raises(errors.RequestIdReused):
        await operator.create_key("red", request_id="one", limits=[budget])
    with pytest.raises(errors.LimitExists):
        await operator.create_key("red", name="twice", limits=[soft])

    limits = (await operator.call(operator.limits.ListLimits, pb.ListLimitsRequest())).limits
    assert {each.id: (each.key, each.mode) for each in limits} == {
        f"{key.id}-1": (key.id, pb.Limit.MODE_ENFORCE),
        "warning": (key.id, pb.Limit.MODE_SHADOW),
    }
    assert len((await operator.list_keys(project_id="red")).keys) == 1
