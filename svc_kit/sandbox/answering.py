"""Does one job and puts its outcome into words; the limits around it are the caller's."""

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from svc_kit.sandbox.frames import write_failure
from svc_kit.sandbox.jobs import FailureKind, JobRefused


def answer(request: Mapping[str, Any], on_imported: Callable[[], None] = lambda: None) -> bytes:
    """Run the job of a request and return the reply, {"result": …} or {"failed": …, "problem": …}.

    `on_imported` is called between the import of its module and its run. Never raises: whatever a
    job does wrong is an answer too.
    """
    try:
        run = getattr(importlib.import_module(request["module"]), request["function"])
        on_imported()
        reply = json.dumps({"result": run(request["payload"])}).encode()
    except JobRefused as refused:
        return write_failure(FailureKind.REFUSED, str(refused))
    except MemoryError:
        return write_failure(FailureKind.MEMORY, "it needs too much memory")
    except RecursionError:
        return write_failure(FailureKind.REFUSED, "it is nested too deeply")
    except Exception as problem:
        return write_failure(FailureKind.CRASHED, f"it failed ({type(problem).__name__})")
    if len(reply) > request["output_bytes"]:
        return write_failure(FailureKind.OUTPUT, "its result is too long")
    return reply
