"""Corral's services, and the options of all methods that its servers have."""

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import corral
from google.protobuf.descriptor import ServiceDescriptor

from svc_kit.auth.scopes import GRPC_METHODS, MethodOptions, method_options, method_path


def list_services(package: str = "corral.") -> list[ServiceDescriptor]:
    """The services of the protos of a package and those below it, whose modules are loaded."""
    names = [module.name for module in pkgutil.walk_packages(corral.__path__, "corral.")]
    modules = [importlib.import_module(name) for name in names if name.endswith("_pb2")]
    services = [s for m in modules for s in m.DESCRIPTOR.services_by_name.values()]
    return [service for service in services if service.full_name.startswith(package)]


METHODS: Final[Mapping[str, MethodOptions]] = MappingProxyType(
    {
        **{
            method_path(m): method_options(m)
            for service in list_services()
            for m in service.methods
        },
        **GRPC_METHODS,
    }
)
"""By path, "/package.Service/Method"."""
