"""Jobs, as operators see them."""

from corral.control.v1 import job_service_pb2_grpc

from control_svc.api.job_service import JobServicer
from control_svc.assembly.ground import Ground
from control_svc.usecases.jobs import Jobs
from control_svc.usecases.reviving import REVIVERS
from svc_kit.rpc_server import Service


def job_service(ground: Ground) -> Service:
    """What operators do with jobs."""
    return Service(
        job_service_pb2_grpc.add_JobServiceServicer_to_server,
        JobServicer(Jobs(ground.transactions, ground.tokens, REVIVERS)),
        "corral.control.v1.JobService",
    )
