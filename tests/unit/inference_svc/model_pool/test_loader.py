"""What is learned of a model beside serving it."""

import hashlib
from pathlib import Path

from inference_svc.model_pool.catalog import KnownModel
from inference_svc.model_pool.eviction import Resident
from inference_svc.model_pool.loader import compute_digest
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import describe_model
from inference_svc.models.placement import LoadPolicy
from tests.support.gguf_files import write_model


async def test_a_digest_is_that_of_the_file_that_was_described(tmp_path: Path) -> None:
    """Of one that came later there is none: it is not what the engine computes with."""
    path = write_model(tmp_path / "m.gguf")
    digests: list[str] = []
    for _ in range(2):
        file = describe_model(path, "m")
        known = KnownModel(file, RequestedLimits(), Resident("m"), policy=LoadPolicy.START)
        if digests:
            write_model(tmp_path / "new.gguf", general__name="Other").replace(path)
        await compute_digest(known)
        assert known.digest_known.is_set()
        digests.append(known.digest)

    assert digests[1] == ""
    write_model(path)
    assert digests[0] == hashlib.sha256(path.read_bytes()).hexdigest()
