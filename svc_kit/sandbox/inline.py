"""Jobs without child processes, and so without limits: for tests of what asks for jobs."""

import json
from collections.abc import Mapping
from typing import Any

from svc_kit.sandbox.frames import answer, read_reply, write_request
from svc_kit.sandbox.jobs import Job


class InlineJobs:
    """Stands in for `SandboxPool`: the same encoding and the same failures, in this process."""

    async def run(self, job: Job, payload: Mapping[str, Any], *, key: str = "") -> Any:
        """Run one job and return its result.

        Raises:
            JobFailed: it gave none.
        """
        return read_reply(answer(json.loads(write_request(job, payload))))
