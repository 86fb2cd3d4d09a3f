"""gRPC's ring, beside the one of the simulation by which its size was chosen."""

from corral.inference.v1 import inference_service_pb2 as pb

from bench.simulation.balancers import RingHash
from bench.simulation.replica import Replica, ReplicaShape
from bench.step_times import StepTimes
from svc_kit.rpc.prefix_key import prefix_key
from svc_kit.rpc.replica_channel import RING_SIZE
from tests.support.replicas import run_replicas


async def test_homes_are_those_of_a_simulated_ring_of_that_size() -> None:
    """So gRPC takes the size that it is given, which its own cap would cut."""
    prompts = [f"prompt {number}" for number in range(60)]
    async with run_replicas(3) as replicas:
        known = [Replica(number, ReplicaShape(StepTimes(1.0))) for number in range(3)]
        rings = [RingHash(known, replicas.addresses, size) for size in (RING_SIZE, 1024)]
        homes = [await replicas.home_of(text) for text in prompts]
        keys = [prefix_key(pb.GenerateRequest(text=text), {}) for text in prompts]
        chosen = [[ring.choose(key, 0.0) for key in keys] for ring in rings]

        assert chosen[0] == [known[home] for home in homes]
        assert chosen[1] != chosen[0]
