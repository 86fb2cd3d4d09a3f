"""Files and uploads."""

from corral.control.v1 import file_service_pb2_grpc, upload_service_pb2_grpc

from control_svc.api.file_service import FileServicer
from control_svc.api.upload_service import UploadServicer
from control_svc.assembly.ground import Ground
from control_svc.domain.files import FileLimits
from control_svc.usecases.files import Files
from control_svc.usecases.uploads import Uploads
from svc_kit.rpc_server import Service


def file_services(ground: Ground) -> list[Service]:
    """What callers do with files, whole or in parts."""
    bounds = ground.settings.files
    files = Files(
        ground.transactions,
        ground.blobs,
        ground.ids,
        ground.tokens,
        FileLimits(bounds.file_bytes, bounds.batch_bytes),
        ground.clock,
    )
    uploads = Uploads(
        ground.transactions,
        ground.blobs,
        ground.ids,
        FileLimits(bounds.upload_bytes, bounds.batch_bytes),
        bounds.part_bytes,
        ground.clock,
    )
    return [
        Service(
            file_service_pb2_grpc.add_FileServiceServicer_to_server,
            FileServicer(files),
            "corral.control.v1.FileService",
        ),
        Service(
            upload_service_pb2_grpc.add_UploadServiceServicer_to_server,
            UploadServicer(uploads),
            "corral.control.v1.UploadService",
        ),
    ]
