"""Types of responses that are made of others: pages of objects, events with the same data."""

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, get_type_hints

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from dialects.openai.shared.objects import ListPage

_TypedDict: Any = TypedDict


def page_shape(shape: Any, name: str = "") -> Any:
    """The type of a page of these objects, named as in FileList if it has no other name."""
    return _page_shape(shape, name or f"{shape.__name__}List")


@functools.cache
def _page_shape(shape: Any, name: str) -> Any:
    return _TypedDict(name, {**get_type_hints(ListPage), "data": list[shape]})


def event_shape(base: str, kind: str, keys: Mapping[str, Any]) -> Any:
    """The type of an event with these keys, named as in ResponseOutputTextDeltaEvent."""
    title = "".join(word.title() for word in kind.replace(".", "_").split("_"))
    name = title if title.startswith(base) else base + title
    return _TypedDict(f"{name}Event", dict(keys))


def one_of(name: str, shapes: Iterable[Any], tag: str) -> Any:
    """A type of this name: one of TypedDicts that differ in the key `tag`."""
    union: Any = functools.reduce(operator.or_, shapes)
    return TypeAliasType(name, Annotated[union, Field(discriminator=tag)])
