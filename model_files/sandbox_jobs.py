"""The sandbox jobs on model files and their limits."""

from typing import Final

from svc_kit.sandbox.jobs import MIB, Job

CHECK_ADAPTER: Final = Job(
    "model_files.adapter_job", "check_adapter", deadline_s=60.0, memory_bytes=256 * MIB
)
READ_ADAPTER: Final = Job(
    "model_files.adapter_job", "read_adapter", deadline_s=60.0, memory_bytes=256 * MIB
)
