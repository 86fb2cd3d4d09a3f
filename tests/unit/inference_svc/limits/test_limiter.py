"""Admission of requests, with a scripted control service and a manual clock."""

from pathlib import Path

import pytest
from corral.control.v1 import limit_service_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp
from prometheus_client import CollectorRegistry

from inference_svc.limits.limiter import Limiter, Need
from inference_svc.limits.limits_file import LimitsFile
from inference_svc.usage import Counts, UsageKey
from svc_kit.errors import BudgetExceeded, DomainError, RateLimited, UpstreamUnavailable
from svc_kit.metrics import LimitMetrics
from tests.support.operators import make_limit

KEY = UsageKey("red", "key_1", "demo")
PRICE = pb.Price(model="demo", prompt_nanos=3, cached_nanos=1, completion_nanos=5)


class Control:
    """Grants what is required, up to `free`."""

    def __init__(self, *limits: pb.Limit) -> None:
        self.limits = limits
        self.free = 10**9
        self.error: DomainError | None = None
        self.calls: list[pb.LeaseLimitsRequest] = []

    async def lease(self, request: pb.LeaseLimitsRequest) -> pb.LeaseLimitsResponse:
        self.calls.append(request)
        if self.error is not None:
            raise self.error
        shares = []
        for share in request.shares:
            granted = share.required if share.required <= self.free else 0
            self.free -= granted
            reset = Timestamp(seconds=2**31)
            shares.append(pb.LimitShare(granted=granted, remaining=self.free, reset_time=reset))
        return pb.LeaseLimitsResponse(limits=self.limits, prices=[PRICE], shares=shares)


class Harness:
    """A limiter that can know the limits of the control service."""

    def __init__(self, folder: Path, *limits: pb.Limit) -> None:
        self.now = 100.0
        self.control = Control(*limits)
        self.registry = CollectorRegistry()
        self.limiter = Limiter(
            self.control.lease,
            LimitsFile(folder / "limits"),
            LimitMetrics(self.registry),
            grace_s=60,
            clock=lambda: self.now,
        )

    def exceeded(self, limit: str, mode: str) -> float | None:
        """The counter of refusals."""
        labels = {"limit": limit, "mode": mode}
        return self.registry.get_sample_value("corral_limits_exceeded_total", labels)


@pytest.mark.parametrize(
    ("unit", "period", "amount"),
    [
        ("REQUESTS", "MINUTE", 1),
        ("TOKENS", "MINUTE", 100 + 2 * 40),
        ("TOKENS", "DAY", 100 + 2 * 40),
        ("COST", "MONTH", 300 + 5 * 2 * 40),
        ("CONCURRENT_REQUESTS", "", 1),
    ],
)
async def test_a_request_reserves_prompt_and_probable_output(
    tmp_path: Path, unit: str, period: str, amount: int
) -> None:
    """At most `max_tokens` of each choice; the exact amount is asked for."""
    harness = Harness(tmp_path, make_limit("one", unit, 10_000, period))
    await harness.limiter.renew()
    await harness.limiter.admit(KEY, Need(100, 40, 2))

    assert [share.required for share in harness.control.calls[-1].shares] == [amount]


async def test_an_outage_of_control_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not while services start together, but if it lasts; and each later one at once."""
    harness = Harness(tmp_path)
    away = UpstreamUnavailable(service="control")
    warnings = []
    for now, error in [
        (100, away),
        (109, away),
        (111, away),
        (120, away),
        (130, None),
        (136, away),
    ]:
        harness.now, harness.control.error = now, error
        await harness.limiter.renew()
        warnings.append(len(caplog.records))

    assert warnings == [0, 0, 1, 1, 1, 2]


async def test_the_mean_output_of_a_model_is_learned(tmp_path: Path) -> None:
    """A request without a small max_tokens reserves it."""
    harness = Harness(tmp_path, make_limit("one", "TOKENS", 10**6))
    await harness.limiter.renew()
    for _ in range(100):
        with await harness.limiter.admit(KEY, Need(1, 5000)) as admission:
            admission.settle(Counts(1, 1, 0, 20))
    other = KEY._replace(model="other")
    learned = [await harness.limiter.admit(key, Need(10**5, 5000)) for key in (KEY, other)]

    reserved = [admission._open[0].amount - 10**5 for admission in learned]
    assert 20 <= reserved[0] <= 21
    assert reserved[1] == 256


async def test_limits_apply_to_what_they_name(tmp_path: Path) -> None:
    """All of project, key and model must match; each key has its own amount if it is per key."""
    limits = [
        make_limit("a", "REQUESTS", 5, project="red"),
        make_limit("b", "REQUESTS", 5, project="blue"),
        make_limit("c", "REQUESTS", 5, key="key_1", model="other"),
        make_limit("d", "REQUESTS", 5, model="demo", per=["SUBJECT_KEY"]),
    ]
    harness = Harness(tmp_path, *limits)
    await harness.limiter.renew()
    asked = []
    for key in ("key_1", "key_2"):
        await harness.limiter.admit(KEY._replace(key=key), Need(1))
        shares = harness.control.calls[-1].shares
        asked.append([(each.limit_id, each.key) for each in shares])

    assert asked == [[("a", ""), ("d", "key_1")], [("a", ""), ("d", "key_2")]]


async def test_a_limit_that_was_deleted_meanwhile_refuses_nothing(tmp_path: Path) -> None:
    """Control has no share of it any more, which the limiter learns when it asks for one."""
    harness = Harness(tmp_path, *(make_limit(n, "REQUESTS", 9) for n in ("kept", "gone")))
    await harness.limiter.renew()
    harness.control.limits = harness.control.limits[:1]
    harness.control.free = 1
    admission = await harness.limiter.admit(KEY, Need(1))

    assert [status.name for status in admission.statuses()] == ["kept"]


async def test_a_refusal_names_the_limit_and_returns_what_was_reserved(tmp_path: Path) -> None:
    """The request has then used nothing, also of limits that had enough."""
    daily = make_limit("daily", "TOKENS", 50, "DAY")
    harness = Harness(tmp_path, make_limit("calls", "REQUESTS", 60), daily)
    await harness.limiter.renew()
    harness.control.free = 40
    with pytest.raises(BudgetExceeded) as refusal:
        await harness.limiter.admit(KEY, Need(45))
    admission = await harness.limiter.admit(KEY, Need(39))

    assert (refusal.value.name, refusal.value.requested) == ("daily", 45)
    assert refusal.value.limit == "50 tokens per day"
    assert harness.exceeded("daily", "enforce") == 1
    assert [each.reset.seconds > 0 for each in admission.statuses()] == [True, True]
    assert [share.limit_id for share in harness.control.calls[-1].shares] == ["daily"]


async def test_a_request_that_never_fits_is_refused_without_a_call(tmp_path: Path) -> None:
    """Retrying is useless."""
    harness = Harness(tmp_path, make_limit("small", "TOKENS", 50))
    await harness.limiter.renew()
    with pytest.raises(RateLimited) as refusal:
        await harness.limiter.admit(KEY, Need(51))

    assert refusal.value.retry_after is None
    assert len(harness.control.calls) == 1


async def test_a_shadow_limit_counts_and_admits(tmp_path: Path) -> None:
    """It uses nothing, and callers are not told of it. A request checked before counts once."""
    shadow = make_limit("trial", "REQUESTS", 5, mode=pb.Limit.MODE_SHADOW)
    harness = Harness(tmp_path, shadow)
    await harness.limiter.renew()
    harness.control.free = 0
    (await harness.limiter.admit(KEY, Need(1), is_check=True)).release()
    admission = await harness.limiter.admit(KEY, Need(1))

    assert admission.statuses() == []
    assert harness.exceeded("trial", "shadow") == 1


async def test_operators_see_what_is_left(tmp_path: Path) -> None:
    """The least of the amounts of each limit, also while control is away."""
    budget = make_limit("spend", "TOKENS", 100, "DAY", per=["SUBJECT_KEY"])
    harness = Harness(tmp_path, budget)
    await harness.limiter.renew()
    for key, free in (("key_1", 90), ("key_2", 40)):
        harness.control.free = free
        await harness.limiter.admit(KEY._replace(key=key), Need(10))
    harness.control.error = UpstreamUnavailable(service="control")
    await harness.limiter.renew()

    labels = {"limit": "spend", "mode": "enforce", "period": "day"}
    assert harness.registry.get_sample_value("corral_limit_left_ratio", labels) == 0.3


async def test_limits_are_enforced_after_a_restart_without_control(tmp_path: Path) -> None:
    """They are read from a file; models without a limit are served."""
    before = Harness(tmp_path, make_limit("one", "REQUESTS", 5, model="demo"))
    await before.limiter.renew()
    harness = Harness(tmp_path)
    harness.control.error = UpstreamUnavailable(service="control")
    with pytest.raises(UpstreamUnavailable):
        await harness.limiter.admit(KEY, Need(1))
    await harness.limiter.admit(KEY._replace(model="other"), Need(1))


def test_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    """The limits come with the first answer of control."""
    file = tmp_path / "limits"
    file.write_bytes(b"\xff\xff")

    assert LimitsFile(file).read() is None


@pytest.mark.parametrize(("period", "returned", "held"), [("MINUTE", -70, 0), ("DAY", 0, 110)])
async def test_a_stream_that_is_longer_than_expected_is_not_cut_but_owed(
    tmp_path: Path, period: str, returned: int, held: int
) -> None:
    """It takes more than the share has; of a rate control subtracts it from what is left."""
    harness = Harness(tmp_path, make_limit("one", "TOKENS", 10**6, period))
    await harness.limiter.renew()
    admission = await harness.limiter.admit(KEY, Need(10, 30))
    for _ in range(5):
        admission.add_output(20)
    await harness.limiter.renew()
    share = harness.control.calls[-1].shares[0]
    admission.settle(Counts(1, 10, 0, 100))
    harness.limiter.on_reported(KEY, Counts(1, 10, 0, 100))
    await harness.limiter.renew()

    assert (share.returned, share.held) == (returned, held)
    assert harness.control.calls[-1].shares[0].held == 0


async def test_what_was_not_used_is_returned(tmp_path: Path) -> None:
    """With the next renewal, as far as it will not be needed soon; a request that was not started
    returns everything."""
    harness = Harness(tmp_path, make_limit("one", "TOKENS", 10**6))
    await harness.limiter.renew()
    (await harness.limiter.admit(KEY, Need(10, 30))).release()
    await harness.limiter.renew()
    share = harness.control.calls[-1].shares[0]

    assert (share.returned, share.held) == (40, 0)
