"""A channel to several replicas of the inference service, made of gRPC's balancing policies.

A generation goes to the home of its prefix (ring_hash); all else, and what its home refuses or
loses, is spread by load (weighted_round_robin, by the reports of `orca.py`). Calls of operators go
to every replica (`replica_fan_out.py`). Both policies leave out replicas that are not SERVING, and
for a while those whose calls fail. A proxy may do the same by the metadata `PREFIX_KEY`.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

import grpc.aio
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.metrics import MoveMetrics
from svc_kit.network import parse_address, parse_addresses
from svc_kit.rpc.client import RETRIES, Option, open_channel
from svc_kit.rpc.generation_progress import KEPT_BYTES
from svc_kit.rpc.movable_stream import (
    PREFIX_KEY,
    Candidates,
    MovableStream,
    Start,
    is_replica_lost,
    lacks_model,
)
from svc_kit.rpc.replica_fan_out import FANNED_OUT, FanOut
from svc_kit.settings.groups import UpstreamTlsSettings
from svc_kit.tasks import retrieve_exception

_RING_HASH_FLAG: Final = "GRPC_EXPERIMENTAL_RING_HASH_SET_REQUEST_HASH_KEY"
"""Without it gRPC ignores requestHashHeader, and calls wait until their deadline."""
_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 12_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
)
"""Servers accept a ping every 10 s. A replica that hangs is noticed within half a minute."""
_HEALTH_CHECK: Final = {"serviceName": "corral.inference.v1.InferenceService"}
RING_SIZE: Final = 65_536
"""Points of the ring. Of 64 replicas the largest has 1.1 times the mean share of the keys, and with
gRPC's 1,024 points 1.7 times; of a thousand 1.4 and 4.9 times (docs/understand/simulation.md). It
takes 1 MiB, and 6 ms when replicas come and go."""
_RING_HASH: Final = {
    "ring_hash_experimental": {
        "requestHashHeader": PREFIX_KEY,
        "minRingSize": RING_SIZE,
        "maxRingSize": RING_SIZE,
    }
}
_RING_CAP: Final = ("grpc.lb.ring_hash.ring_size_cap", RING_SIZE)
_BY_LOAD: Final = {
    "weighted_round_robin": {
        "enableOobLoadReport": True,
        "oobReportingPeriod": "1s",
        "weightUpdatePeriod": "1s",
        "blackoutPeriod": "0s",
        "weightExpirationPeriod": "30s",
    }
}
_RETRIES: Final = {**RETRIES, "retryThrottling": {"maxTokens": 1000, "tokenRatio": 0.5}}
"""A replica that is killed loses many calls at once, of which gRPC would repeat ten."""
_RETRY_BUFFER: Final = ("grpc.per_rpc_retry_buffer_size", KEPT_BYTES)
"""By default gRPC repeats no call of more than 256 KiB."""
_ONCE: Final = ("grpc.enable_retries", 0)
_PAUSES_S: Final = (0.1, 0.3)
"""Before the second and third attempt of a call, as in `RETRIES`."""
_MOVABLE: Final = frozenset((pb.ChatRequest, pb.GenerateRequest))


def open_replica_channel(
    target: str,
    *,
    balancer: str | None = None,
    token: str | None = None,
    tls: UpstreamTlsSettings | None = None,
    options: Sequence[Option] = (),
    outlives_engines: bool,
    metrics: MoveMetrics | None = None,
) -> grpc.aio.Channel:
    """Open a channel to a service: with one address as `open_channel` does, with a list or a dns:
    name to all replicas of the inference service. `balancer`: all but the calls of
    operators go to a proxy at this address. `outlives_engines`: calls during which an engine died
    are repeated, as in `MovableStream`."""
    replicas = _replicas_target(target)
    if not outlives_engines:
        options = [*options, _ONCE]  # gRPC repeats whatever is UNAVAILABLE
    if balancer is None and replicas is None:
        return open_channel(target, token=token, tls=tls, options=options)
    replicas = replicas or target
    os.environ.setdefault(_RING_HASH_FLAG, "true")
    options = [*options, *_KEEPALIVE]
    once = [*options, _ONCE]  # gRPC would repeat a call at the same replica
    repeated = [*options, _RETRY_BUFFER]
    open_one = partial(open_channel, token=token, tls=_replicas_tls(replicas, tls))
    fan_out = FanOut(replicas, partial(open_one, options=once))
    if balancer is None:
        home = open_one(replicas, options=[*once, _RING_CAP, _service_config(_RING_HASH)])
        spread = open_one(replicas, options=[*repeated, _service_config(_BY_LOAD, _RETRIES)])
    else:
        home = open_channel(balancer, token=token, tls=tls, options=once)
        retries = ("grpc.service_config", json.dumps(_RETRIES))
        spread = open_channel(balancer, token=token, tls=tls, options=[*repeated, retries])
    return ReplicaChannel(home, spread, fan_out, outlives_engines=outlives_engines, metrics=metrics)


def _replicas_tls(replicas: str, tls: UpstreamTlsSettings | None) -> UpstreamTlsSettings | None:
    """The settings for channels to single replicas, which have addresses that certificates need not
    name."""
    if tls is None or tls.server_name is not None or not replicas.startswith("dns:"):
        return tls
    host = parse_address(replicas.rpartition("/")[2].removeprefix("dns:")).host
    return tls.model_copy(update={"server_name": host})


def _replicas_target(target: str) -> str | None:
    """gRPC's name of all replicas; None if there is one address."""
    if target.startswith("dns:"):
        return target
    if "," not in target:
        return None
    if target.startswith(("ipv4:", "ipv6:")):
        return target
    addresses = parse_addresses(target)
    scheme = "ipv6" if ":" in addresses[0].host else "ipv4"
    return f"{scheme}:{','.join(map(str, addresses))}"


def _service_config(policy: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Option:
    # Every status but OK counts as a failure, also REPLICA_FULL: gRPC has no other setting.
    outliers = {
        "interval": "5s",
        "baseEjectionTime": "10s",
        "maxEjectionPercent": 50,
        "failurePercentageEjection": {"threshold": 90, "minimumHosts": 2, "requestVolume": 20},
        "childPolicy": [policy],
    }
    config = {
        "loadBalancingConfig": [{"outlier_detection_experimental": outliers}],
        "healthCheckConfig": _HEALTH_CHECK,
        **(more or {}),
    }
    return "grpc.service_config", json.dumps(config)


class ReplicaChannel(grpc.aio.Channel):
    """The home and the spread channel, and those to each replica, as one."""

    def __init__(
        self,
        home: grpc.aio.Channel,
        spread: grpc.aio.Channel,
        fan_out: FanOut,
        *,
        outlives_engines: bool,
        metrics: MoveMetrics | None,
    ) -> None:
        self._home = home
        self._spread = spread
        self._fan_out = fan_out
        self._outlives_engines = outlives_engines
        self._metrics = metrics
        # Else a call that moves finds only the replicas that connect first.
        spread.get_state(try_to_connect=True)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """A method whose calls go to every replica if their requests are `FANNED_OUT`."""
        spread = self._spread.unary_unary(*args, **kwargs)

        def start(request: Any, *, metadata: Any = (), timeout: float | None = None) -> Any:
            if type(request) in FANNED_OUT:
                call = asyncio.ensure_future(self._fan_out.call(request, metadata, timeout))
                call.add_done_callback(retrieve_exception)
                return call
            if not hasattr(request, "model"):
                return spread(request, metadata=metadata, timeout=timeout)
            find = partial(self._fan_out.find, request, metadata)
            pauses_s = () if self._outlives_engines else _PAUSES_S  # else gRPC makes them
            return _MovableCall(spread, request, metadata, timeout, find=find, pauses_s=pauses_s)

        return start

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """A method whose calls are `MovableStream`s, if they are generations."""
        home = self._home.unary_stream(*args, **kwargs)
        spread = self._spread.unary_stream(*args, **kwargs)

        def start(request: Any, *, metadata: Any = (), timeout: float | None = None) -> Any:
            if type(request) not in _MOVABLE:
                return spread(request, metadata=metadata, timeout=timeout)
            return MovableStream(
                home,
                spread,
                request,
                find=self._fan_out.find,
                metadata=metadata,
                timeout=timeout,
                outlives_engines=self._outlives_engines,
                metrics=self._metrics,
            )

        return start

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._spread.stream_unary(*args, **kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._spread.stream_stream(*args, **kwargs)

    async def close(self, grace: float | None = None) -> None:
        await self._home.close(grace)
        await self._spread.close(grace)
        await self._fan_out.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._spread.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._spread.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._spread.channel_ready()


class _MovableCall:
    """A call without a stream, which is repeated after each of `pauses_s` if its replica is lost,
    and goes to a replica that has its model if the chosen one lacks it."""

    def __init__(
        self,
        start: Start,
        request: Any,
        metadata: Any,
        timeout: float | None,
        *,
        find: Callable[[], Awaitable[Candidates]],
        pauses_s: Sequence[float],
    ) -> None:
        self._request = request
        self._metadata = metadata
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._find = find
        self._pauses_s = pauses_s
        self._call: Any = None
        self._start(start)
        self._reply = asyncio.ensure_future(self._read(start))
        self._reply.add_done_callback(retrieve_exception)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._reply.__await__()

    def cancel(self) -> bool:
        return self._reply.cancel()

    async def initial_metadata(self) -> Any:
        """That of the last attempt."""
        return await self._call.initial_metadata()

    def _start(self, start: Start) -> None:
        remaining_s = None
        if self._deadline is not None:
            remaining_s = max(0.0, self._deadline - time.monotonic())
        self._call = start(self._request, metadata=self._metadata, timeout=remaining_s)

    async def _read(self, start: Start) -> Any:
        for pause_s in self._pauses_s:
            try:
                return await self._read_where_found()
            except grpc.aio.AioRpcError as error:
                if not is_replica_lost(error):
                    raise
            await asyncio.sleep(pause_s)
            self._start(start)
        return await self._read_where_found()

    async def _read_where_found(self) -> Any:
        try:
            return await self._call
        except grpc.aio.AioRpcError as error:
            if not lacks_model(error):
                raise
            found = await self._find()
            if not found.starts:
                raise found.away or error from None
        self._start(found.starts[0])
        return await self._call
