"""The RPCs of keys."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from corral.control.v1 import key_service_pb2 as pb
from corral.control.v1.limit_service_pb2 import Limit
from corral.inference.v1 import generation_pb2

from control_svc.base.pagination import Page
from control_svc.base.proto import page_request
from control_svc.base.resource import OperatorMethods
from control_svc.projects.key_model import ApiKey, NewKey, Rotation
from control_svc.projects.keys import AddLimits, Keys
from svc_kit.auth.principal import DEFAULT_PROJECT, Priority
from svc_kit.auth.scopes import Scope
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, decode_timestamp

_VERDICTS: Final = {
    "API_KEY_INVALID": pb.VerifyKeyResponse.VERDICT_UNKNOWN,
    "API_KEY_EXPIRED": pb.VerifyKeyResponse.VERDICT_EXPIRED,
    "API_KEY_REVOKED": pb.VerifyKeyResponse.VERDICT_REVOKED,
    "PROJECT_ARCHIVED": pb.VerifyKeyResponse.VERDICT_PROJECT_ARCHIVED,
}
_SCOPES: Final = EnumMapper[str](
    Literal["inference", "admin", "generate", "files", "files_read", "read", "admin_read"],
    pb.KeyScope,
)
_PRIORITIES: Final = EnumMapper[Priority](Priority, generation_pb2.Priority)
_KEY: Final = MessageMapper(
    ApiKey,
    pb.ApiKey,
    only_domain=["sha256", "old_sha256", "scopes"],
    only_message=["scopes"],
)
_ROTATION: Final = MessageMapper(Rotation, pb.RotateKeyRequest)
_log = logging.getLogger(__name__)


def new_key(request: pb.CreateKeyRequest) -> NewKey:
    """Convert the request to create a key. Raises MissingField or InvalidField."""
    scopes = {
        _SCOPES.decode(value, f"scopes[{number}]") for number, value in enumerate(request.scopes)
    }
    has_expiry = request.HasField("expire_time")
    return NewKey(
        project=request.project_id or DEFAULT_PROJECT,
        name=request.name,
        scopes=frozenset(scopes or {Scope.INFERENCE.value}),
        priority=_PRIORITIES.decode_optional(request.priority, "priority") or Priority.NORMAL,
        expires_at=decode_timestamp(request.expire_time, "expire_time") if has_expiry else None,
        request_id=request.request_id,
        models=tuple(request.models),
        networks=tuple(request.networks),
        limits=tuple(each.SerializeToString(deterministic=True).hex() for each in request.limits),
    )


@dataclass(frozen=True)
class KeyServicer(OperatorMethods[ApiKey]):
    service = pb.DESCRIPTOR.services_by_name["KeyService"]
    message, noun, plural = _KEY, "a key", "keys"

    keys: Keys
    check_model: Callable[[str, str], Awaitable[object]]
    """Raises unless a project may use a model."""
    limits_to_add: Callable[[Sequence[Limit], bool], AddLimits]
    """Converts the limits of a new key; the second argument is whether their projects may be
    unknown."""
    serves_keyless: bool
    """Whether callers without a key are served."""

    def to_message(self, value: ApiKey) -> pb.ApiKey:
        return _KEY.to_message(value, scopes=map(_SCOPES.encode, sorted(value.scopes)))

    async def CreateKey(self, request: pb.CreateKeyRequest) -> pb.CreateKeyResponse:
        """Raises the errors of `Keys.create`."""
        new = new_key(request)
        add_limits = self.limits_to_add(request.limits, request.allow_unknown)

        async def check_models() -> None:
            if request.allow_unknown:
                return
            limited = [(each.project, each.model) for each in request.limits if each.model]
            models = [*(("", model) for model in request.models), *limited]
            for project, model in dict.fromkeys(models):
                await self.check_model(project or new.project, model)

        created = await self.keys.create(new, add_limits, check_models)
        if self.serves_keyless:
            _log.warning(
                "API key created, but callers without a key are still served: set require_keys"
            )
        return pb.CreateKeyResponse(
            key=self.to_message(created.key),
            secret=created.secret,
            serves_keyless_callers=self.serves_keyless,
        )

    async def GetKey(self, request: pb.GetKeyRequest) -> ApiKey:
        """Raises ApiKeyNotFound."""
        return await self.keys.get(request.key_id)

    async def ListKeys(self, request: pb.ListKeysRequest) -> Page[ApiKey]:
        """Raises the errors of `Keys.page`."""
        return await self.keys.page(
            page_request(request, 0), request.project_id, with_revoked=request.show_revoked
        )

    async def RevokeKey(self, request: pb.RevokeKeyRequest) -> ApiKey:
        """Raises ApiKeyNotFound."""
        return await self.keys.revoke(request.key_id)

    async def RotateKey(self, request: pb.RotateKeyRequest) -> pb.RotateKeyResponse:
        """Raises the errors of `Keys.rotate`."""
        rotated = await self.keys.rotate(_ROTATION.from_message(request))
        return pb.RotateKeyResponse(key=self.to_message(rotated.key), secret=rotated.secret)

    async def VerifyKey(self, request: pb.VerifyKeyRequest) -> pb.VerifyKeyResponse:
        """Verify a key for a service. Raises MissingField or InvalidField."""
        key, refusal = await self.keys.look_up(request.sha256)
        valid = pb.VerifyKeyResponse.VERDICT_VALID
        return pb.VerifyKeyResponse(
            verdict=valid if refusal is None else _VERDICTS[refusal.reason],
            key=None if key is None else self.to_message(key),
        )
