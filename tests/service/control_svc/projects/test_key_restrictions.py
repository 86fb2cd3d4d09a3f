"""Rotation of keys, and keys for some models and networks, on both databases."""

from datetime import UTC, timedelta
from typing import Any

import pytest
from corral.control.v1 import key_service_pb2 as pb
from google.protobuf.duration_pb2 import Duration

from svc_kit import errors
from tests.support.control import RunningControl
from tests.support.operators import ADMIN, Operator, make_timestamp

GENERATE = pb.KEY_SCOPE_GENERATE
HOUR = 3600


@pytest.fixture
def operator(running: RunningControl) -> Operator:
    return Operator.of(running)


async def rotate(
    operator: Operator, key_id: str, overlap_s: int | None = HOUR, **request: Any
) -> pb.RotateKeyResponse:
    overlap = None if overlap_s is None else Duration(seconds=overlap_s)
    message = pb.RotateKeyRequest(key_id=key_id, overlap=overlap, **request)
    response: pb.RotateKeyResponse = await operator.call(operator.keys.RotateKey, message)
    return response


async def test_both_secrets_are_valid_until_the_overlap_ends(
    running: RunningControl, operator: Operator
) -> None:
    """The key has the same id, rights and usage; the new secret stays."""
    made = await operator.create_key(name="ci", scopes=[ADMIN])
    rotated = await rotate(operator, made.key.id)
    during = [await operator.verify(each) for each in (made.secret, rotated.secret)]
    running.clock.advance(hours=1)
    after = [await operator.verdict(each) for each in (made.secret, rotated.secret)]

    assert (rotated.key.id, rotated.key.name) == (made.key.id, "ci")
    assert list(rotated.key.scopes) == [ADMIN]
    assert rotated.secret.startswith(rotated.key.prefix)
    assert rotated.secret != made.secret
    assert {each.key.id for each in during} == {made.key.id}
    end = rotated.key.rotate_time.ToDatetime(UTC) + timedelta(hours=1)
    assert during[0].key.expire_time.ToDatetime(UTC) == end
    assert not during[1].key.HasField("expire_time")
    assert after == ["EXPIRED", "VALID"]


async def test_another_rotation_ends_the_secret_before_the_previous(operator: Operator) -> None:
    """At most two are valid."""
    made = await operator.create_key()
    second = await rotate(operator, made.key.id)
    third = await rotate(operator, made.key.id, overlap_s=None)

    secrets = (made.secret, second.secret, third.secret)
    assert [await operator.verdict(each) for each in secrets] == ["UNKNOWN", "VALID", "VALID"]
    default = third.key.old_expire_time.ToDatetime() - third.key.rotate_time.ToDatetime()
    assert default == timedelta(hours=24)


async def test_the_previous_secret_does_not_outlive_the_key(
    running: RunningControl, operator: Operator
) -> None:
    """Its expiry stays, while the rotated key can get another one."""
    soon = running.clock() + timedelta(minutes=5)
    later = running.clock() + timedelta(days=90)
    made = await operator.create_key(expire_time=make_timestamp(soon))
    rotated = await rotate(operator, made.key.id, expire_time=make_timestamp(later))

    assert rotated.key.old_expire_time.ToDatetime(UTC) == soon
    assert rotated.key.expire_time.ToDatetime(UTC) == later


async def test_a_repeated_rotation_changes_nothing(operator: Operator) -> None:
    """With the same request id; its secret was returned before."""
    made = await operator.create_key()
    first = await rotate(operator, made.key.id, request_id="one")
    again = await rotate(operator, made.key.id, request_id="one")

    assert first.secret
    assert (again.key, again.secret) == (first.key, "")
    with pytest.raises(errors.RequestIdReused):
        await rotate(operator, made.key.id, overlap_s=1, request_id="one")


async def test_rotations_are_refused_with_the_field(
    running: RunningControl, operator: Operator
) -> None:
    """Unknown, revoked and expired keys, and overlaps out of range."""
    revoked, expiring = await operator.create_key(), await operator.create_key(
        expire_time=make_timestamp(running.clock() + timedelta(minutes=1))
    )  # fmt: skip
    await operator.revoke(revoked.key.id)
    running.clock.advance(minutes=1)
    with pytest.raises(errors.ApiKeyNotFound):
        await rotate(operator, "key_1")
    with pytest.raises(errors.InvalidField, match="revoked"):
        await rotate(operator, revoked.key.id)
    with pytest.raises(errors.InvalidField, match="has expired"):
        await rotate(operator, expiring.key.id)
    for overlap in (-1, 91 * 24 * HOUR):
        with pytest.raises(errors.OutOfRange, match="overlap"):
            await rotate(operator, revoked.key.id, overlap)


@pytest.mark.parametrize(("seconds", "nanos"), [(0, 10**9), (-1, 2**31 - 1), (1, -1)])
async def test_a_duration_with_other_nanoseconds_is_refused(
    operator: Operator, seconds: int, nanos: int
) -> None:
    """They are a part of a second, with the sign of the seconds."""
    made = await operator.create_key()
    overlap = Duration(seconds=seconds, nanos=nanos)
    request = pb.RotateKeyRequest(key_id=made.key.id, overlap=overlap)

    with pytest.raises(errors.InvalidField, match="it is not a valid duration") as refused:
        await operator.call(operator.keys.RotateKey, request)
    assert refused.value.field == "overlap"


async def test_both_secrets_end_when_the_key_is_revoked(operator: Operator) -> None:
    """Also during the overlap."""
    made = await operator.create_key()
    rotated = await rotate(operator, made.key.id)
    await operator.revoke(made.key.id)

    assert {await operator.verdict(each) for each in (made.secret, rotated.secret)} == {"REVOKED"}


async def test_a_key_has_its_models_and_networks(operator: Operator) -> None:
    lists: dict[str, Any] = {
        "models": ["qwen3", "org/a:b"],
        "networks": ["10.0.0.0/8", "2001:db8::/32"],
    }
    made = await operator.create_key(scopes=[GENERATE], **lists)
    for key in (made.key, await operator.get_key(made.key.id)):
        assert {"models": [*key.models], "networks": [*key.networks]} == lists
    assert (await operator.verify(made.secret)).key.networks == lists["networks"]


@pytest.mark.parametrize(
    ("request_fields", "error", "text"),
    [
        ({"models": ["m"]}, errors.InvalidField, "models.*not with the scope"),
        ({"models": ["m\n"], "scopes": [GENERATE]}, errors.InvalidField, r"models\[0\]"),
        ({"models": [""], "scopes": [GENERATE]}, errors.MissingField, r"models\[0\]"),
        ({"models": ["m"] * 101, "scopes": [GENERATE]}, errors.TooLong, "models"),
        ({"networks": ["10.0.0.1/8"]}, errors.InvalidField, r"networks\[0\].*host bits"),
        ({"networks": ["10.0.0.0/8", "here"]}, errors.InvalidField, r"networks\[1\]"),
    ],
)
async def test_restrictions_are_validated(
    operator: Operator, request_fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await operator.create_key(**request_fields)


async def test_the_control_service_checks_the_network_of_a_key(
    running: RunningControl, operator: Operator
) -> None:
    """Its clients connect from loopback."""
    near = await operator.create_key(scopes=[ADMIN], networks=["127.0.0.0/8", "::1"])
    far = await operator.create_key(scopes=[ADMIN], networks=["192.0.2.0/24"])

    assert (await Operator.of(running, near.secret).list_keys()).keys
    with pytest.raises(errors.AddressNotAllowed, match=r"127\.0\.0\.1|::1"):
        await Operator.of(running, far.secret).list_keys()


async def test_a_secret_ends_with_its_overlap_in_the_control_service(
    running: RunningControl, operator: Operator
) -> None:
    """Its callers get the same error as with an expired key, and then none knows it."""
    made = await operator.create_key(scopes=[ADMIN])
    await rotate(operator, made.key.id, overlap_s=1)
    running.clock.advance(seconds=2)
    with pytest.raises(errors.ApiKeyExpired):
        await Operator.of(running, made.secret).list_keys()
    await rotate(operator, made.key.id, overlap_s=0)
    with pytest.raises(errors.ApiKeyInvalid):
        await Operator.of(running, made.secret).list_keys()
