"""What operators look after: projects, keys and usage."""

from corral.control.v1 import (
    key_service_pb2_grpc,
    project_service_pb2_grpc,
    usage_service_pb2_grpc,
)

from control_svc.api.key_service import KeyServicer
from control_svc.api.project_service import ProjectServicer
from control_svc.api.usage_service import UsageServicer
from control_svc.assembly.ground import Ground, or_no_start
from control_svc.usecases.keys import Keys
from control_svc.usecases.projects import Projects
from control_svc.usecases.usage import Usage
from svc_kit.auth import Authenticator
from svc_kit.rpc_server import Service


async def operator_services(
    ground: Ground, keys: Keys, authenticator: Authenticator
) -> list[Service]:
    """Their services. Raises StartupError."""
    projects = Projects(ground.transactions, ground.tokens, ground.clock)
    await or_no_start(projects.prepare())
    return [
        Service(
            project_service_pb2_grpc.add_ProjectServiceServicer_to_server,
            ProjectServicer(projects),
            "corral.control.v1.ProjectService",
        ),
        Service(
            key_service_pb2_grpc.add_KeyServiceServicer_to_server,
            KeyServicer(keys, serves_keyless=authenticator.serves_keyless),
            "corral.control.v1.KeyService",
        ),
        Service(
            usage_service_pb2_grpc.add_UsageServiceServicer_to_server,
            UsageServicer(Usage(ground.transactions, ground.tokens, ground.clock)),
            "corral.control.v1.UsageService",
        ),
    ]
