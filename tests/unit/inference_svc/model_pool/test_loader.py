"""Tests of the digest that is computed in the background."""

import hashlib
from pathlib import Path

from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.model_pool.eviction import Resident
from inference_svc.model_pool.loader import find_digest
from inference_svc.models.known_digests import KnownDigests
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import describe_model
from inference_svc.models.placement import LoadPolicy
from tests.support.gguf_files import write_model


async def test_the_digest_is_computed_only_for_the_described_file(tmp_path: Path) -> None:
    """A file replaced later is not the one that the engine uses, so it gets no digest."""
    path = write_model(tmp_path / "m.gguf")
    digests: list[str] = []
    for _ in range(2):
        file = describe_model(path, "m")
        entry = ModelEntry(file, RequestedLimits(), Resident("m"), policy=LoadPolicy.START)
        if digests:
            write_model(tmp_path / "new.gguf", general__name="Other").replace(path)
        await find_digest(entry, KnownDigests(tmp_path / "digests"))
        assert entry.digest_computed.is_set()
        digests.append(entry.digest)

    assert digests[1] == ""
    write_model(path)
    assert digests[0] == hashlib.sha256(path.read_bytes()).hexdigest()
