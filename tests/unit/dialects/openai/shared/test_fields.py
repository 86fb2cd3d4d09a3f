"""The models of bodies and queries, all of them."""

import importlib
import pkgutil
from collections.abc import Iterator

import dialects
from dialects.shared.fields import WireModel


def models(base: type[WireModel] = WireModel) -> Iterator[type[WireModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def schemas(value: object) -> Iterator[dict[str, object]]:
    """Every schema within one of Pydantic's."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from schemas(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from schemas(inner)


def test_unions_are_discriminated() -> None:
    """Errors of other unions have member names in the field path."""
    for module in pkgutil.walk_packages(dialects.__path__, "dialects."):
        importlib.import_module(module.name)

    with_unions = [
        model
        for model in models()
        if any(each.get("type") == "union" for each in schemas(model.__pydantic_core_schema__))
    ]

    assert with_unions == []
