"""Standard methods of all services have the same fields, and comments say something."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from google.protobuf.descriptor import MethodDescriptor

from tests.architecture.test_house_rules import ROOT
from tools.rpc_methods import list_services

METHODS = [method for service in list_services() for method in service.methods]
PROTOS = sorted((ROOT / "protos").rglob("*.proto"))
PAGED = [method for method in METHODS if method.name.startswith("List")]
UPDATES = [method for method in METHODS if method.name.startswith("Update")]


@pytest.mark.parametrize("method", PAGED, ids=lambda method: method.full_name)
def test_every_list_has_pages(method: MethodDescriptor) -> None:
    request, response = method.input_type.fields_by_name, method.output_type.fields_by_name

    assert request["page_size"].type == request["page_size"].TYPE_INT32
    assert request["page_token"].type == request["page_token"].TYPE_STRING
    assert response["next_page_token"].type == request["page_token"].TYPE_STRING


@pytest.mark.parametrize("method", UPDATES, ids=lambda method: method.full_name)
def test_every_update_has_a_field_mask(method: MethodDescriptor) -> None:
    """By which callers clear fields."""
    mask = method.input_type.fields_by_name["update_mask"].message_type

    assert mask is not None
    assert mask.full_name == "google.protobuf.FieldMask"


def test_every_request_belongs_to_one_method() -> None:
    """Of a service in the same file, so that clients find the method by the request's type."""
    requests = [method.input_type.full_name for method in METHODS]

    assert sorted(set(requests)) == sorted(requests)
    assert all(method.input_type.file is method.containing_service.file for method in METHODS)


FILLER: Final = set(
    re.findall(
        r"\w+",
        "a an and are as be by describe each for has have hold in is it its name of on one or page "
        "request response return that the this to was were which with",
    )
)
"""Words that add nothing to a name."""
NAMED: Final = re.compile(r"(message|enum|service|oneof) \w+ \{|([\w.<>, ]+ \w+ = \d+)(;| \[.*)")


def words(text: str) -> set[str]:
    """The words of a name or a sentence, in the singular."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)
    return {re.sub("(?<=[a-z]{3})(e?s)$", "", word.lower()) for word in found}


def comments(path: Path) -> Iterator[tuple[str, str, str]]:
    """The line, the names that enclose it, and its comment, of each declaration."""
    comment: list[str] = []
    names: list[str] = []
    for line in map(str.strip, path.read_text(encoding="utf-8").splitlines()):
        if line.startswith("//"):
            comment.append(line[2:])
            continue
        if NAMED.fullmatch(line):
            yield line, " ".join(names), " ".join(comment)
        comment = []
        if line.endswith("{"):  # Of a declaration or of an option.
            names.append(line)
        elif line.startswith("}"):
            names.pop()


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: str(path.relative_to(ROOT)))
def test_comments_say_more_than_names(path: Path) -> None:
    """Every message has one, unless it is the request or the response of an RPC."""
    wrappers = {each.name for method in METHODS for each in (method.input_type, method.output_type)}
    empty = [
        (line, comment)
        for line, names, comment in comments(path)
        if (not comment and line.removeprefix("message ").removesuffix(" {") not in wrappers)
        or (comment and words(comment) <= words(f"{line} {names}") | FILLER)
    ]

    assert empty == []
