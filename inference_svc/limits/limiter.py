"""Admits requests within the limits of the control service, of which this process leases shares.

A request reserves its exact prompt tokens and the output that is probable, before it is queued. It
waits for control only if the share has too little, and not long. While control is away or slow, the
process uses an equal part of what was left, for a bounded time.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from corral.control.v1 import limit_service_pb2 as pb
from corral.control.v1.usage_service_pb2 import ReportUsageRequest
from corral.inference.v1.generation_pb2 import RateLimitStatus

from inference_svc.limits.bucket import Bucket, BucketKey, Reservation
from inference_svc.limits.output_means import OutputMeans
from inference_svc.usage import Counts, Send, UsageKey
from svc_kit.errors import DomainError, UpstreamUnavailable
from svc_kit.logs import OutageLevel
from svc_kit.metrics import LimitMetrics
from svc_kit.tasks import retrieve_exception

_log = logging.getLogger(__name__)
_IDLE_S: Final = 60.0
"""An unused bucket is forgotten after this time or `grace_s`, but not while control is away."""
_REFRESH_S: Final = 5.0
"""New limits are noticed after this time, or sooner."""
_RETRY_S: Final = 1.0
"""While control is away, requests do not call it more often."""
_PATIENCE_S: Final = 1.0
_START_S: Final = 10.0
"""Services that start together may reach control later; until then that is no warning."""
_MAX_SHARES: Final = 1000
"""Maximum per call, set by the control service."""
_CHARGE_TOKENS: Final = 16
"""Output tokens of a request that are charged together while it runs."""

Lease = Callable[[pb.LeaseLimitsRequest], Awaitable[pb.LeaseLimitsResponse]]
"""Calls the control service. Raises a `DomainError`."""


class SavedLimits(Protocol):
    """Keeps the limits while the process is down."""

    def read(self) -> pb.LeaseLimitsResponse | None:
        """Return what was written; None if there is nothing."""

    def write(self, limits: pb.LeaseLimitsResponse) -> None:
        """Keep limits and prices."""


class _Charge(NamedTuple):
    """What a request uses, from which the amount of each unit follows."""

    price: pb.Price
    counts: Counts

    def amount(self, unit: "pb.Limit.Unit") -> int:
        requests, prompt, cached, completion = self.counts
        match unit:
            case pb.Limit.UNIT_TOKENS:
                return prompt + completion
            case pb.Limit.UNIT_COST:
                price = self.price
                return (
                    (prompt - cached) * price.prompt_nanos
                    + cached * price.cached_nanos
                    + completion * price.completion_nanos
                )
            case _:
                return requests


class LimitReservation:
    """An admitted request. End it with `settle` or `release`; the later call has no effect."""

    def __init__(
        self,
        prompt_tokens: int,
        *,
        price: pb.Price | None = None,
        reservations: Sequence[Reservation] = (),
        add_output_mean: Callable[[int], None] = lambda num_tokens: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._price = price or pb.Price()
        self._open = reservations
        self._counts = Counts(1, prompt_tokens)
        self._charged = Counts()
        self._add_output_mean = add_output_mean

    def __enter__(self) -> "LimitReservation":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def statuses(self) -> list[RateLimitStatus]:
        """The state of the enforced limits."""
        now = self._clock()
        buckets = (reservation.bucket for reservation in self._open)
        return [bucket.status(now) for bucket in buckets if bucket.is_enforced]

    def add_output(self, num_tokens: int) -> None:
        """Charge generated tokens, several at a time, and the prompt before the first of them."""
        if self._open:
            completion = self._counts.completion_tokens + num_tokens
            self._counts = self._counts._replace(completion_tokens=completion)
            charged = self._charged
            if not charged.requests or completion - charged.completion_tokens >= _CHARGE_TOKENS:
                self._charge(self._counts)

    def settle(self, counts: Counts) -> None:
        """Charge what the request has used, and return the rest of what was reserved."""
        self._add_output_mean(counts.completion_tokens)
        self._charge(counts)
        self.release()

    def release(self) -> None:
        """Return what is reserved and not charged."""
        for reservation in self._open:
            reservation.close()
        self._open = ()

    def _charge(self, counts: Counts) -> None:
        before, after = _Charge(self._price, self._charged), _Charge(self._price, counts)
        for reservation in self._open:
            unit = reservation.bucket.limit.unit
            if unit != pb.Limit.UNIT_CONCURRENT_REQUESTS:
                reservation.use(after.amount(unit) - before.amount(unit))
        self._charged = counts


class Need(NamedTuple):
    """The size of a request; `max_tokens` limits the output of a choice."""

    prompt_tokens: int
    max_tokens: int = 0
    num_choices: int = 1


class Admit(Protocol):
    """`Limiter.admit`, or `admit_all`."""

    async def __call__(
        self, key: UsageKey, need: Need, *, is_check: bool = False
    ) -> LimitReservation:
        """Admit a request, or raise why not."""


async def admit_all(key: UsageKey, need: Need, *, is_check: bool = False) -> LimitReservation:
    """Admit a request without limits. Used without a control service."""
    return LimitReservation(need.prompt_tokens)


class Limiter:
    """Admits requests, and leases shares from the control service."""

    def __init__(
        self,
        lease: Lease,
        saved: SavedLimits,
        metrics: LimitMetrics,
        *,
        grace_s: float,
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        outage_level: OutageLevel | None = None,
    ) -> None:
        """`grace_s` is how long requests are admitted while control is away, and `patience_s` how
        long they wait for its answer, which is used when it comes."""
        self._outputs = OutputMeans()
        self._lease = lease
        self._saved = saved
        self._metrics = metrics
        self._grace_s = grace_s
        self._patience_s = patience_s
        self._clock = clock
        self._outage_level = outage_level or OutageLevel()
        self._holder = str(uuid.uuid4())
        self._limits: Mapping[str, pb.Limit] = {}
        self._prices: Mapping[str, pb.Price] = {}
        self._buckets: dict[BucketKey, Bucket] = {}
        self._lock = asyncio.Lock()
        self._asking: set[asyncio.Task[None]] = set()
        self._num_calls = 0
        self._called_at: float | None = None
        """When the running call began."""
        self._failed_at: float | None = None
        """When the last call failed; None if it was answered."""
        self._is_in_doubt = False
        """Whether a report of usage failed, which control may have added."""
        self._warns_from = clock() + _START_S
        self._refreshed_at: float | None = None
        if (known := saved.read()) is not None:
            self._set_limits(known)

    async def admit(self, key: UsageKey, need: Need, *, is_check: bool = False) -> LimitReservation:
        """Reserve what a request will probably use.

        `is_check`: the request is admitted again later, so limits in shadow mode do not count it.

        Raises RateLimited or BudgetExceeded, or UpstreamUnavailable if control has been away for
        too long, or other services may have what is left of a budget.
        """
        known = self._limits
        limits = [
            limit
            for limit in known.values()
            if _applies(limit, key) and not (is_check and limit.mode == pb.Limit.MODE_SHADOW)
        ]
        price, outputs = self._price(key.model), self._outputs
        prompt_tokens, max_tokens, num_choices = need
        output_tokens = num_choices * outputs.expect(key.model, max_tokens)
        charge = _Charge(price, Counts(1, prompt_tokens, 0, output_tokens))
        needs = {self._bucket(limit, key): charge.amount(limit.unit) for limit in limits}
        is_late = self._is_late()
        short = {
            each: amount for each, amount in needs.items() if is_late or amount > each.available
        }
        if short:
            await self._obtain(needs, short)
            if self._limits is not known:  # a limit may have been deleted meanwhile
                return await self.admit(key, need, is_check=is_check)
        return LimitReservation(
            prompt_tokens,
            price=price,
            reservations=self._reserve(needs),
            add_output_mean=lambda total: outputs.add(key.model, total / num_choices),
            clock=self._clock,
        )

    def on_reported(self, key: UsageKey, counts: Counts) -> None:
        """Usage was added by the control service, which counts it from now on."""
        charge = _Charge(self._price(key.model), counts)
        for bucket in self._buckets.values():
            limit = bucket.limit
            matches = bucket.key == _bucket_key(limit, key) and _applies(limit, key)
            if bucket.is_budget and matches:
                bucket.on_reported(charge.amount(limit.unit), self._clock())

    def between_calls(self, send: Send) -> Send:
        """Send reports of usage while control is not asked for shares, since what they contain
        counts as held until `on_reported`."""

        async def send_between(report: ReportUsageRequest) -> None:
            async with self._lock:
                self._called_at, self._is_in_doubt = self._clock(), True
                try:
                    await send(report)
                    self._is_in_doubt = False
                finally:
                    self._called_at = None

        return send_between

    async def run(self, interval_s: float) -> None:
        """Renew the leases at an interval until cancelled, and follow changes of limits."""
        while True:
            await self.renew()
            await asyncio.sleep(interval_s)

    async def renew(self) -> None:
        """Renew the leases, and return what is not needed."""
        async with self._lock:
            now, idle_s = self._clock(), max(_IDLE_S, self._grace_s)
            for bucket in [*self._buckets.values()] if self._failed_at is None else ():
                if bucket.held == bucket.available == 0 and now - bucket.touched_at > idle_s:
                    del self._buckets[bucket.key]
            due = [bucket for bucket in self._buckets.values() if bucket.is_due(now)]
            if due or self._refreshed_at is None or now - self._refreshed_at >= _REFRESH_S:
                due.sort(key=lambda bucket: bucket.answered_at or 0.0)
                await self._call(dict.fromkeys(due[:_MAX_SHARES], 0))
        self._show_left()

    def _show_left(self) -> None:
        ratios: dict[tuple[str, str, str], float] = {}
        for bucket in self._buckets.values():
            mode = "enforce" if bucket.is_enforced else "shadow"
            labels = (bucket.limit.id, mode, bucket.period)
            left = bucket.left(self._clock()) / bucket.limit.amount
            ratios[labels] = min(left, ratios.get(labels, 1.0))
        self._metrics.show_left(ratios)

    # ---- shares

    def _reserve(self, needs: Mapping[Bucket, int]) -> list[Reservation]:
        """Reserve of all buckets, or raise the refusal of the first that has too little."""
        taken: list[Reservation] = []
        for bucket, need in needs.items():
            if (reservation := bucket.reserve(need)) is not None:
                taken.append(reservation)
                continue
            refusal = bucket.refusal(need, self._clock(), is_in_doubt=self._is_in_doubt)
            self._metrics.refused(bucket.limit.id, shadow=not bucket.is_enforced)
            fields = {"limit": bucket.limit.id, "requested": need, **bucket.key._asdict()}
            if bucket.is_enforced:
                for reservation in taken:
                    reservation.close()
                raise refusal
            _log.info("beyond a limit in shadow mode: %s", refusal, extra={"fields": fields})
        return taken

    async def _obtain(self, needs: Mapping[Bucket, int], short: Mapping[Bucket, int]) -> None:
        """Ask for shares until they are there, or control has no more: what it grants to one
        request may be reserved by another first. `short`: the needs for which a share has too
        little. Raises UpstreamUnavailable."""
        for bucket, need in needs.items():
            bucket.waiting += need
        try:
            while short and await self._ask_in_time(short):
                short = self._obtainable(needs)
        finally:
            for bucket, need in needs.items():
                bucket.waiting -= need

    async def _ask_in_time(self, needs: Mapping[Bucket, int]) -> bool:
        """Ask for shares. False if control is away, and the process serves alone. Raises
        UpstreamUnavailable."""
        has_answer = True
        if self._may_call():
            asking = asyncio.create_task(self._ask(needs))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
            asking.add_done_callback(retrieve_exception)
            await asyncio.wait({asking}, timeout=self._patience_s)
            if has_answer := asking.done():
                asking.result()
        if has_answer and not self._is_away():
            return True
        now, is_late = self._clock(), self._is_late()
        for bucket in needs:
            if (is_late or not bucket.serve_alone(now)) and bucket.is_enforced:
                raise UpstreamUnavailable(service="control")
        return False

    async def _ask(self, needs: Mapping[Bucket, int]) -> None:
        async with self._lock:
            short = self._obtainable(needs)
            if short and self._may_call():
                await self._call(short)

    def _may_call(self) -> bool:
        """Whether control may answer a request in time."""
        if self._failed_at is None:
            return not self._is_away()
        return self._called_at is None and self._clock() - self._failed_at >= _RETRY_S

    def _is_away(self) -> bool:
        """Whether control did not answer the last call, or answers it late."""
        called_at = self._called_at
        is_slow = called_at is not None and self._clock() - called_at > self._patience_s
        return is_slow or self._failed_at is not None

    def _is_late(self) -> bool:
        """Whether control has not answered for `grace_s`."""
        return self._refreshed_at is None or self._clock() - self._refreshed_at >= self._grace_s

    def _obtainable(self, needs: Mapping[Bucket, int]) -> Mapping[Bucket, int]:
        now = self._clock()
        return {each: need for each, need in needs.items() if each.may_obtain(need, now)}

    async def _call(self, needs: Mapping[Bucket, int]) -> None:
        """Ask control for shares of buckets, and what waiting requests need of them. Holds the
        lock."""
        self._called_at = now = self._clock()
        self._num_calls += 1
        asked = [
            # What is owed is paid first.
            bucket.ask(
                max(0, need - max(bucket.available, 0)), now, returns=self._failed_at is None
            )
            for bucket, need in needs.items()
        ]
        request = pb.LeaseLimitsRequest(holder=self._holder, number=self._num_calls, shares=asked)
        try:
            reply = await self._lease(request)
        except DomainError as error:
            self._failed_at = now = self._clock()
            if now >= self._warns_from:
                level = self._outage_level(error)
                _log.log(level, "limits cannot be leased now: %s", error)
                self._warns_from = math.inf if level == logging.WARNING else now + _START_S
            return
        finally:
            self._called_at = None
        self._failed_at, self._warns_from = None, 0.0
        self._refreshed_at = self._clock()
        self._set_limits(reply)
        for bucket, each, share in zip(needs, asked, reply.shares, strict=True):
            bucket.answer(each, share, self._refreshed_at, time.time())

    # ---- limits

    def _set_limits(self, known: pb.LeaseLimitsResponse) -> None:
        limits = {limit.id: limit for limit in known.limits}
        prices = {price.model: price for price in known.prices}
        if (limits, prices) == (self._limits, self._prices):
            return
        self._limits, self._prices = limits, prices
        for bucket in [*self._buckets.values()]:
            new = limits.get(bucket.key.limit_id)
            if new is None or new.create_time != bucket.limit.create_time:
                del self._buckets[bucket.key]
            else:
                bucket.limit = new
        self._saved.write(pb.LeaseLimitsResponse(limits=limits.values(), prices=prices.values()))

    def _bucket(self, limit: pb.Limit, key: UsageKey) -> Bucket:
        name, now = _bucket_key(limit, key), self._clock()
        if (bucket := self._buckets.get(name)) is None:
            bucket = self._buckets[name] = Bucket(name, limit, now)
        bucket.touched_at = now
        return bucket

    def _price(self, model: str) -> pb.Price:
        return self._prices.get(model) or self._prices.get("") or pb.Price()


def _applies(limit: pb.Limit, key: UsageKey) -> bool:
    return (
        limit.project in ("", key.project)
        and limit.key in ("", key.key)
        and limit.model in ("", key.model)
    )


def _bucket_key(limit: pb.Limit, key: UsageKey) -> BucketKey:
    per = limit.per
    return BucketKey(
        limit.id,
        key.project if pb.Limit.SUBJECT_PROJECT in per else "",
        key.key if pb.Limit.SUBJECT_KEY in per else "",
        key.model if pb.Limit.SUBJECT_MODEL in per else "",
    )
