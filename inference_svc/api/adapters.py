"""Which LoRA adapters a request uses."""

from collections.abc import Sequence
from dataclasses import dataclass

from corral.inference.v1 import adapter_pb2

from inference_svc.catalog import Catalog, Named
from inference_svc.engine.adapter_stack import AdapterStack, AppliedAdapter, stack_of
from inference_svc.runtime.adapter import Adapter
from svc_kit.adapter_rules import check_scale
from svc_kit.errors import AdapterBaseMismatch, InvalidField, MissingField, TooLong

MAX_ADAPTERS = 64


@dataclass(frozen=True, slots=True)
class Worn:
    """The adapters of one request: the generations that it uses, and the stack they make."""

    adapters: tuple[Adapter, ...] = ()
    stack: AdapterStack = ()


def adapters_of(
    asked: Sequence[adapter_pb2.AdapterScale], named: Named, catalog: Catalog, project: str
) -> Worn:
    """What a request asks for, else what its model's name stands for in its project, else what
    stands there. Raises `AdapterNotFound`, `AdapterBaseMismatch` or the error of a bad field."""
    if not asked and named.adapter is None:
        standing = catalog.standing(named.model, project)
        return _worn([(adapter, adapter.standing_scale) for adapter in standing])
    if not asked:
        implied = catalog.find_adapter(named.name, project)
        return _worn([(implied, implied.default_scale)])
    if len(asked) > MAX_ADAPTERS:
        raise TooLong(field="adapters", length=len(asked), limit=MAX_ADAPTERS)
    chosen: dict[str, tuple[Adapter, float]] = {}
    for index, each in enumerate(asked):
        field = f"adapters[{index}]"
        if not each.adapter:
            raise MissingField(field=f"{field}.adapter")
        adapter = catalog.find_adapter(each.adapter, project)
        if adapter.name in chosen:
            raise InvalidField(field=f"{field}.adapter", problem=f"{adapter.name!r} is there twice")
        if adapter.model != named.model.name:
            problem = f"it is for {adapter.model!r}, the request is for {named.model.name!r}"
            raise AdapterBaseMismatch(adapter=adapter.name, problem=problem)
        scale = each.scale if each.HasField("scale") else adapter.default_scale
        check_scale(f"{field}.scale", scale)
        chosen[adapter.name] = adapter, scale
    return _worn(list(chosen.values()))


def _worn(chosen: Sequence[tuple[Adapter, float]]) -> Worn:
    stack = stack_of(AppliedAdapter(adapter.digest, scale) for adapter, scale in chosen)
    used = {applied.digest for applied in stack}
    return Worn(tuple(adapter for adapter, _ in chosen if adapter.digest in used), stack)
