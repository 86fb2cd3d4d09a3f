"""Standard methods of all services have the same fields."""

import importlib
import pkgutil
from collections.abc import Sequence

import corral
import pytest
from google.protobuf.descriptor import MethodDescriptor


def list_methods() -> Sequence[MethodDescriptor]:
    """The methods of all services."""
    names = [module.name for module in pkgutil.walk_packages(corral.__path__, "corral.")]
    modules = [importlib.import_module(name) for name in names if name.endswith("_service_pb2")]
    services = [s for m in modules for s in m.DESCRIPTOR.services_by_name.values()]
    return [method for service in services for method in service.methods]


METHODS = list_methods()
PAGED = [method for method in METHODS if method.name.startswith("List")]
UPDATES = [method for method in METHODS if method.name.startswith("Update")]


@pytest.mark.parametrize("method", PAGED, ids=lambda method: method.full_name)
def test_every_list_has_pages(method: MethodDescriptor) -> None:
    """With a size and a token, and the token of the next page."""
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
