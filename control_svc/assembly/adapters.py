"""The registry of LoRA adapters."""

from corral.control.v1 import adapter_service_pb2_grpc

from control_svc.api.adapter_service import AdapterServicer
from control_svc.assembly.ground import Ground, data_folder
from control_svc.usecases.adapter_bytes import AdapterBytes
from control_svc.usecases.adapters import Adapters
from control_svc.usecases.desired import Desired
from svc_kit.folders import AllowedFolders
from svc_kit.rpc_server import Service


def adapter_service(ground: Ground) -> Service:
    """What callers register, and what frontends should have."""
    settings = ground.settings
    source = AdapterBytes(
        ground.transactions,
        ground.blobs,
        ground.sandbox,
        AllowedFolders([*settings.adapter_folders, settings.data_dir / "adapters"]),
        scratch=data_folder(settings),
        limit=settings.adapters.file_bytes,
        clock=ground.clock,
    )
    adapters = Adapters(
        ground.transactions,
        ground.blobs,
        source,
        ground.ids,
        ground.tokens,
        settings.adapters.per_project,
        ground.notices,
        ground.clock,
    )
    desired = Desired(ground.transactions, ground.blobs, ground.notices)
    return Service(
        adapter_service_pb2_grpc.add_AdapterServiceServicer_to_server,
        AdapterServicer(adapters, desired, ground.clock),
        "corral.control.v1.AdapterService",
    )
