"""Calls of the engine service, and lists of models, at every replica, and one reply made of theirs.

The reply has the sums of their numbers, and all items of their lists with the replica of each, in
the order of the list of one.
"""

import asyncio
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc.aio
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import load_pb2, session_pb2
from corral.inference.v1.inference_service_pb2 import (
    GetModelRequest,
    ListModelsRequest,
    ListModelsResponse,
)
from corral.inference.v1.model_pb2 import Model
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from svc_kit.errors import UpstreamUnavailable
from svc_kit.errors.status import to_rpc_error
from svc_kit.network import Address, parse_address
from svc_kit.rpc.client import open_method
from svc_kit.rpc.movable_stream import Candidates

READ_TIMEOUT_S: Final = 3.0
"""So long a listing waits for a replica that does not answer."""
_GRACE_S: Final = 0.1
"""So long it waits, when others have answered, for one that did not answer the last one."""
_READS: Final = (
    pb.GetLoadRequest,
    pb.ListRequestsRequest,
    pb.ListSessionsRequest,
    pb.ListAdaptersRequest,
    ListModelsRequest,
)
_FOUND_AT_ONE: Final = (pb.AbortRequest, pb.SaveSnapshotRequest, pb.RestoreSnapshotRequest)
_AT_ALL: Final = (
    pb.LoadModelRequest,
    pb.UnloadModelRequest,
    pb.AddModelRequest,
    pb.UpdateModelRequest,
    pb.AddModelAliasRequest,
    pb.RemoveModelRequest,
    pb.LoadAdapterRequest,
    pb.UnloadAdapterRequest,
    pb.DropSnapshotsRequest,
    pb.FlushCacheRequest,
)
FANNED_OUT: Final = frozenset((*_READS, *_FOUND_AT_ONE, *_AT_ALL))
"""The requests that go to every replica."""
_KEYS: Final[Mapping[type, tuple[str, ...]]] = {
    load_pb2.QueueLoad: ("priority",),
    load_pb2.ModelLoad: ("model",),
    load_pb2.StepTime: ("num_rows",),
    load_pb2.StepHistogram: ("model", "max_rows", "has_prompt", "bounds"),
    session_pb2.Session: ("session_id",),
}
"""Items of lists that are one item if these fields are equal."""
_STATES: Final = (Model.STATE_READY, Model.STATE_LOADING, Model.STATE_AVAILABLE)
"""Of a model that replicas have in several states the first of these is listed, else any."""
_ORDERS: Final[Mapping[type, tuple[str, Callable[[Any], Any]]]] = {
    pb.ListRequestsResponse: ("requests", lambda each: -each.age.ToNanoseconds()),
    pb.ListSessionsResponse: ("sessions", lambda each: -each.end_time.ToNanoseconds()),
    pb.ListAdaptersResponse: ("adapters", lambda each: (each.name, each.generation)),
}
"""Lists in replies, and how they are sorted."""
_SUMMED: Final = [
    each.DESCRIPTOR for each in (load_pb2.Load, load_pb2.EmbeddingLoad, load_pb2.PrefixTier)
]
_NUMBERS: Final = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
    FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_DOUBLE,
)

_Outcome = Message | grpc.aio.AioRpcError
_AWAY: Final = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
)
"""Of replicas that do not say whether they have a model."""
_NO_METADATA: Final = grpc.aio.Metadata()
_SILENCE: Final = grpc.aio.AioRpcError(
    grpc.StatusCode.DEADLINE_EXCEEDED, _NO_METADATA, _NO_METADATA, "it does not answer"
)


class FanOut:
    """A plain channel to each replica."""

    def __init__(self, target: str, open_plain: Callable[[str], grpc.aio.Channel]) -> None:
        """`target` is a list of addresses or a dns: name, without spaces."""
        self._target = target
        self._open = open_plain
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._num_calls: Counter[str] = Counter()
        self._silent: set[str] = set()
        """The replicas that did not answer the last listing in time."""
        self._reads: set[asyncio.Task[Any]] = set()
        self._resolved: Sequence[str] = ()
        """The addresses that the name had when it was last resolved."""

    async def call(self, request: Any, metadata: Any, timeout: float | None) -> Message:
        """Call every replica. Raises AioRpcError: of what changes something, that of the first
        replica that failed; of what is at one replica, if it was found at none and may be where
        there was no answer; else, if none answered."""
        addresses = await self._addresses()
        # Those to replicas that are gone, once their calls have ended.
        await self._close_channels(self._channels.keys() - {*addresses, *self._num_calls})
        if isinstance(request, _READS):
            timeout = min(timeout or READ_TIMEOUT_S, READ_TIMEOUT_S)
            outcomes = await self._read_all(addresses, request, metadata, timeout)
        else:
            calls = (self._call_one(each, request, metadata, timeout) for each in addresses)
            outcomes = dict(zip(addresses, await asyncio.gather(*calls), strict=True))
        replies = {name: each for name, each in outcomes.items() if isinstance(each, Message)}
        errors = {
            name: each for name, each in outcomes.items() if isinstance(each, grpc.aio.AioRpcError)
        }
        is_partial = isinstance(request, _AT_ALL) or _lacks_one(request, replies.values())
        if errors and (not replies or is_partial):
            missing = grpc.StatusCode.NOT_FOUND  # says less than the error of another one
            named, error = min(errors.items(), key=lambda item: item[1].code() is missing)
            is_public = isinstance(request, ListModelsRequest)  # which other than operators call
            raise error if is_public else _named(named, error)
        return merged_reply(replies, errors)

    async def find(self, request: Any, metadata: Any) -> Candidates:
        """Find the replicas that have the model of a request, those where it is ready first. Raises
        AioRpcError if their addresses are not known."""
        wanted = GetModelRequest(model=request.model)
        addresses = await self._addresses()
        outcomes = await self._read_all(addresses, wanted, metadata, READ_TIMEOUT_S)
        found = {name: each for name, each in outcomes.items() if isinstance(each, Message)}
        random.shuffle(names := [*found])
        names.sort(key=lambda name: _state_rank(found[name].model))  # type: ignore[attr-defined]
        codes = {each.code() for each in outcomes.values() if not isinstance(each, Message)}
        away = to_rpc_error(UpstreamUnavailable(service="inference")) if codes & _AWAY else None
        return Candidates([partial(self._start, name) for name in names], away)

    async def _read_all(
        self, addresses: Sequence[str], request: Any, metadata: Any, timeout: float
    ) -> dict[str, _Outcome]:
        """Ask every replica. One that was silent at the last time is waited for only if no other
        one answers."""
        reads = {
            each: asyncio.create_task(self._read_one(each, request, metadata, timeout))
            for each in addresses
        }
        for read in reads.values():
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)
        awaited = [read for each, read in reads.items() if each not in self._silent]
        if awaited:
            await asyncio.wait(awaited)
        is_answered = any(isinstance(read.result(), Message) for read in awaited)
        await asyncio.wait(reads.values(), timeout=_GRACE_S if is_answered else None)
        return {each: read.result() if read.done() else _SILENCE for each, read in reads.items()}

    async def _read_one(
        self, address: str, request: Any, metadata: Any, timeout: float
    ) -> _Outcome:
        outcome = await self._call_one(address, request, metadata, timeout)
        self._silent.discard(address)
        if not isinstance(outcome, Message) and outcome.code() is _SILENCE.code():
            self._silent.add(address)
        return outcome

    def _start(self, address: str, request: Any, metadata: Any, timeout: float | None) -> Any:
        if address not in self._channels:
            self._channels[address] = self._open(address)
        method = open_method(self._channels[address], type(request))
        call = method(request, metadata=metadata, timeout=timeout)
        self._num_calls[address] += 1
        call.add_done_callback(lambda _: self._count_end(address))
        return call

    def _count_end(self, address: str) -> None:
        self._num_calls -= Counter([address])  # keeps only what is left

    async def close(self) -> None:
        await self._close_channels(self._channels.keys())

    async def _close_channels(self, addresses: Iterable[str]) -> None:
        for address in [*addresses]:
            await self._channels.pop(address).close()

    async def _call_one(
        self, address: str, request: Any, metadata: Any, timeout: float | None
    ) -> _Outcome:
        """The reply of a replica, with all pages of a list, or its error."""
        try:
            reply: Any = await self._start(address, request, metadata, timeout)
            token = getattr(reply, "next_page_token", "")
            while token:
                following = type(request)()
                following.CopyFrom(request)
                following.page_token = token
                page = await self._start(address, following, metadata, timeout)
                token = page.next_page_token
                reply.MergeFrom(page)
                reply.next_page_token = token
        except grpc.aio.AioRpcError as error:
            return error
        named: Message = _with_replica(reply, address)
        return named

    async def _addresses(self) -> Sequence[str]:
        """Those of the list, or those that the name has, or last had if it cannot be resolved, as
        in gRPC's channels. Raises AioRpcError if it never could."""
        scheme, _, rest = self._target.partition(":")
        if scheme != "dns":
            return (rest if scheme in ("ipv4", "ipv6") else self._target).split(",")
        host, port = parse_address(rest.rpartition("/")[2])
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port)
        except OSError as error:
            if self._resolved:
                return self._resolved
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                _NO_METADATA,
                _NO_METADATA,
                f"{host}: {error.strerror}",
            ) from error
        hosts = dict.fromkeys(str(address[0]) for *_, address in found)
        # A replica may have an address of each kind.
        of_one_kind = [each for each in hosts if ":" not in each] or hosts
        self._resolved = [str(Address(each, port)) for each in of_one_kind]
        return self._resolved


def _named(address: str, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """The error of a replica, with its address in the message."""
    details = f"{address}: {error.details()}"
    return grpc.aio.AioRpcError(
        error.code(), error.initial_metadata(), error.trailing_metadata(), details
    )


def _with_replica(reply: Message, address: str) -> Message:
    """Set the replica of the items of a list, or of those of the lists of its items."""
    for field, value in reply.ListFields():
        if field.is_repeated and field.message_type is not None:
            for item in value:
                if "replica" in item.DESCRIPTOR.fields_by_name:
                    item.replica = address
                else:
                    _with_replica(item, address)
    return reply


def _lacks_one(request: Any, replies: Iterable[Any]) -> bool:
    """Whether what was asked for may be at a replica that did not answer."""
    if not isinstance(request, pb.AbortRequest):
        return False
    outcomes = (outcome for reply in replies for outcome in reply.outcomes)
    aborted = {o.request_id for o in outcomes if o.kind == pb.AbortOutcome.KIND_ABORTED}
    return not aborted.issuperset(request.request_ids)


def merged_reply(
    replies: Mapping[str, Message], errors: Mapping[str, grpc.aio.AioRpcError]
) -> Message:
    """One reply of all, at least one; models, adapters and snapshots are those of the first."""
    parts = list(replies.values())
    total: Any = type(parts[0])()
    total.CopyFrom(parts[0])
    if isinstance(total, (pb.SaveSnapshotResponse, pb.RestoreSnapshotResponse)):
        return parts[0]
    if isinstance(total, ListModelsResponse):
        return _merged_models([part.models for part in parts])  # type: ignore[attr-defined]
    for part in parts[1:]:
        _add(total, part)
    if type(total) in _ORDERS:
        field, order = _ORDERS[type(total)]
        getattr(total, field).sort(key=order)
    match total:
        case pb.GetLoadResponse():
            total.load.models.sort(key=lambda each: each.model)
            total.replicas.extend(
                load_pb2.ReplicaLoad(replica=name, load=reply.load)  # type: ignore[attr-defined]
                for name, reply in replies.items()
            )
            total.replicas.extend(
                load_pb2.ReplicaLoad(replica=name, problem=error.details() or error.code().name)
                for name, error in errors.items()
            )
        case pb.ListSessionsResponse():
            for session in total.sessions:
                session.turns.sort(key=lambda each: each.end_time.ToNanoseconds())
        case pb.AbortResponse():
            _merge_outcomes(total)
    merged: Message = total
    return merged


def _merge_outcomes(total: pb.AbortResponse) -> None:
    """Keep one outcome of each request."""
    kinds: dict[str, pb.AbortOutcome.Kind] = {}
    for each in total.outcomes:  # ABORTED is less than NOT_RUNNING
        kinds[each.request_id] = min(each.kind, kinds.get(each.request_id, each.kind))
    del total.outcomes[:]
    for request_id, kind in kinds.items():
        total.outcomes.add(request_id=request_id, kind=kind)


def _merged_models(lists: Sequence[Iterable[Model]]) -> ListModelsResponse:
    """All models that any replica has, since calls find one that has theirs."""
    found: dict[str, list[Model]] = {}
    for models in lists:
        for model in models:
            found.setdefault(model.name, []).append(model)
    reply = ListModelsResponse()
    for _, same in sorted(found.items()):
        listed = reply.models.add()
        listed.CopyFrom(min(same, key=_state_rank))
        listed.aliases[:] = sorted({alias for model in same for alias in model.aliases})
        digests = {model.digest for model in same} - {"", listed.digest}
        listed.replicas.num_having, listed.replicas.num_asked = len(same), len(lists)
        listed.replicas.other_digests.extend(sorted(digests))
    return reply


def _state_rank(model: Model) -> int:
    return _STATES.index(model.state) if model.state in _STATES else len(_STATES)


def _add(total: Any, other: Any) -> None:
    """Add the numbers and lists of a message to those of another one."""
    for field, value in other.ListFields():
        own = getattr(total, field.name)
        if field.name in _KEYS.get(type(other), ()):
            continue
        if field.is_repeated:
            _extend(own, value)
        elif field.message_type is Duration.DESCRIPTOR:
            own.CopyFrom(max(own, value, key=Duration.ToNanoseconds))
        elif field.message_type is Timestamp.DESCRIPTOR:
            own.CopyFrom(max(own, value, key=Timestamp.ToNanoseconds))
        elif field.message_type is not None and field.message_type in _SUMMED:
            _add(own, value)
        elif field.cpp_type in _NUMBERS:
            setattr(total, field.name, own + value)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            setattr(total, field.name, own or value)


def _extend(items: Any, more: Any) -> None:
    for each in more:
        key = _KEYS.get(type(each), ())
        same = [one for one in items if key and _values(one, key) == _values(each, key)]
        if not same:
            items.append(each)
        elif isinstance(each, load_pb2.StepHistogram):
            same[0].counts[:] = map(operator.add, same[0].counts, each.counts)
            total = same[0].sum.ToNanoseconds() + each.sum.ToNanoseconds()
            same[0].sum.FromNanoseconds(total)
        else:
            _add(same[0], each)


def _values(item: Any, names: Iterable[str]) -> list[Any]:
    return [getattr(item, name) for name in names]
