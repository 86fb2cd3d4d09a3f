"""Prefix-cache policy: which projects share computed prefixes, and what is retained."""

import hashlib
from collections.abc import Iterable, Mapping

from corral.inference.v1 import generation_pb2 as generation

from inference_svc.engine.request import AdapterStack, ArchiveOwner, project_archive
from svc_kit.auth.principal import Principal
from svc_kit.errors import InvalidField, ServiceOnly


class PrefixGroups:
    """Groups of projects that share computed prefixes."""

    def __init__(self, projects_by_group: Mapping[str, Iterable[str]]) -> None:
        self._group_of = {
            project: group for group, projects in projects_by_group.items() for project in projects
        }

    def owner(self, project: str) -> str:
        """Return the owner under which a project's prefixes are cached: its group, or the project
        itself. A project never equals a group of the same name."""
        group = self._group_of.get(project)
        if group is None:
            return f"{len(project)}:{project}"
        return f"group {len(group)}:{group}"


_NOT_REUSABLE = "it requires cache.reuse and excludes deterministic"


def check_retention(options: generation.GenerationOptions) -> None:
    """Raise `InvalidField` if `cache.keep` is set but reuse is not allowed."""
    if options.cache.keep and not may_reuse(options):
        raise InvalidField(field="cache.keep", problem=_NOT_REUSABLE)


def archive_owner(
    options: generation.GenerationOptions,
    principal: Principal,
    digest: str,
    *,
    archives_stateless: bool = False,
) -> ArchiveOwner | None:
    """Return for whom a sequence is archived: the stored object that the request names, else its
    project if `archives_stateless`; None until the model's `digest` is computed.

    Raises `ServiceOnly` if the caller who names an object is not a service, or `InvalidField` if
    reuse is not allowed.
    """
    owner = options.cache.keep_for
    if owner and not principal.is_service:
        raise ServiceOnly(field="cache.keep_for")
    if owner and not may_reuse(options):
        raise InvalidField(field="cache.keep_for", problem=_NOT_REUSABLE)
    if not owner and archives_stateless and may_reuse(options):
        owner = project_archive(principal.project)
    return ArchiveOwner(owner, digest) if owner and digest else None


def cache_key(cache: generation.CacheOptions, owner: str, adapters: AdapterStack) -> bytes:
    """Return the key under which prefixes are cached. `owner` is from `PrefixGroups`; adapters are
    part of the key because they change the cached states."""
    stack = ",".join(f"{adapter.digest}*{adapter.scale!r}" for adapter in adapters)
    text = f"{len(stack)}:{stack}{owner}{cache.salt}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def may_reuse(options: generation.GenerationOptions) -> bool:
    """Whether cached prefixes may be used. Never for deterministic requests: states computed in
    different batches differ slightly."""
    allowed = options.cache.reuse if options.cache.HasField("reuse") else True
    return allowed and not options.deterministic
