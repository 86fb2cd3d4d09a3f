"""Cache keys: whose prefixes a request may use, and who may use its own."""

import hashlib
from collections.abc import Iterable, Mapping

from corral.inference.v1 import generation_pb2 as generation

from inference_svc.engine.request import AdapterStack, StoredObjectRef
from inference_svc.rpc.validation import check_bytes
from svc_kit.auth.principal import Principal
from svc_kit.errors import InvalidField, ServiceOnly

MAX_SALT_BYTES = 256
MAX_AFFINITY_BYTES = 256
MAX_OBJECT_ID_BYTES = 128


class PrefixGroups:
    """Groups of projects that share computed prefixes."""

    def __init__(self, projects_by_group: Mapping[str, Iterable[str]]) -> None:
        self._group_of = {
            project: group for group, projects in projects_by_group.items() for project in projects
        }

    def owner(self, project: str) -> str:
        """Whose prefixes a project's requests compute and find: nobody's of another group, nor of a
        project that is called like a group."""
        group = self._group_of.get(project)
        if group is None:
            return f"{len(project)}:{project}"
        return f"group {len(group)}:{group}"


NO_GROUPS = PrefixGroups({})


def check_retention(options: generation.GenerationOptions) -> None:
    """Raises `InvalidField` where a state is to be kept that none may use."""
    if options.cache.keep and not may_reuse(options):
        raise InvalidField(field="cache.keep", problem="a state that none may reuse is not kept")


def stored_object_of(
    options: generation.GenerationOptions, principal: Principal, digest: str
) -> StoredObjectRef | None:
    """The stored object that a sequence is part of; none while the model's `digest` is not known.

    Raises `ServiceOnly` where a caller names one that does not keep objects, `TooLong`, or
    `InvalidField` where nothing is kept.
    """
    object_id = options.cache.keep_for
    if not object_id:
        return None
    if not principal.is_service:
        raise ServiceOnly(field="cache.keep_for")
    check_bytes("cache.keep_for", object_id, MAX_OBJECT_ID_BYTES)
    if not may_reuse(options):
        problem = "a state that none may reuse is not kept"
        raise InvalidField(field="cache.keep_for", problem=problem)
    return StoredObjectRef(object_id, digest) if digest else None


def cache_key(cache: generation.CacheOptions, owner: str, adapters: AdapterStack) -> bytes:
    """Whose computed prefixes these are, `owner` being of `PrefixGroups`: cells hold what the
    adapters made of the tokens."""
    check_bytes("cache.salt", cache.salt, MAX_SALT_BYTES)
    check_bytes("cache.affinity", cache.affinity, MAX_AFFINITY_BYTES)
    stack = ",".join(f"{adapter.digest}*{adapter.scale!r}" for adapter in adapters)
    text = f"{len(stack)}:{stack}{owner}{cache.salt}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def may_reuse(options: generation.GenerationOptions) -> bool:
    """Cells that were computed beside others would not be the same twice."""
    request = options.cache.reuse if options.cache.HasField("reuse") else True
    return request and not options.deterministic
