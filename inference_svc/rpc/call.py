"""A call of Generate or Chat: its request, its model, its caller, and what it holds until it ends.

`generation.py` makes and prepares calls.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.limits.limiter import LimitReservation
from inference_svc.media.processor import MediaLease
from inference_svc.model_pool.catalog import LoadedModel, ModelProcessor
from inference_svc.validation import check_range
from svc_kit.auth.principal import Principal, current_principal
from svc_kit.logs import current_request_id
from svc_kit.rpc.interceptors import current_deadline, may_move

RequestT = TypeVar("RequestT", pb.GenerateRequest, pb.ChatRequest)


@dataclass(frozen=True, slots=True)
class Caller:
    """Principal, request id and deadline (monotonic clock) of a call. `may_move`: a full replica
    should refuse it, since it is then sent to another one."""

    principal: Principal
    request_id: str
    deadline: float | None
    may_move: bool = False

    @classmethod
    def current(cls) -> "Caller":
        return cls(current_principal(), current_request_id(), current_deadline(), may_move())

    def resolve_priority(self, request: generation.Priority) -> int:
        """Return the priority of a request. Raises `OutOfRange` if it exceeds the caller's own."""
        if request == generation.PRIORITY_UNSPECIFIED:
            return int(self.principal.priority)
        check_range("priority", request, 1, int(self.principal.priority))
        return int(request)


@dataclass(slots=True)
class Call(Generic[RequestT]):
    """A request with its model, which stays loaded until the call ends. The prefixes that it
    computes are cached for `owner`, and archived for its project if `archives_stateless` and it
    names no stored object. Its `admission` and the vectors of its pictures and sounds, `media`, are
    released by `close`."""

    request: RequestT
    loaded: LoadedModel
    caller: Caller
    owner: str
    archives_stateless: bool = False
    media: MediaLease = field(default_factory=lambda: MediaLease((), lambda: None))
    admission: LimitReservation = field(default_factory=lambda: LimitReservation(0))

    @property
    def options(self) -> generation.GenerationOptions:
        return self.request.options

    @property
    def model(self) -> ModelProcessor:
        """Vocabulary and template of the model."""
        return self.loaded.processor

    @property
    def slot_tokens(self) -> int:
        """The context of one sequence."""
        return self.loaded.ready.slot_tokens

    @property
    def project(self) -> str:
        return self.caller.principal.project

    @property
    def num_choices(self) -> int:
        return self.options.num_choices or 1

    @property
    def priority(self) -> int:
        """The priority of its sequences. Raises `OutOfRange` if it exceeds the caller's own."""
        return self.caller.resolve_priority(self.options.scheduling.priority)

    def close(self) -> None:
        self.media.release()
        self.admission.release()


AnyCall = Call[pb.GenerateRequest] | Call[pb.ChatRequest]
