"""Runs, steps and their events as documents: JSON, of which operators can make sense with SQL
alone."""

from typing import Final

import orjson
from pydantic import ConfigDict, TypeAdapter

from control_svc.domain.run_events import RunEvent
from control_svc.domain.run_steps import RunStep
from control_svc.domain.runs import Run, RunSettings

_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
# Unions: pydantic takes no configuration for a dataclass from outside.
_RUN: Final[TypeAdapter[Run | None]] = TypeAdapter(Run | None, config=_BYTES)
_SETTINGS: Final[TypeAdapter[RunSettings | None]] = TypeAdapter(RunSettings | None, config=_BYTES)
_STEP: Final[TypeAdapter[RunStep]] = TypeAdapter(RunStep)
_EVENT: Final[TypeAdapter[RunEvent]] = TypeAdapter(RunEvent, config=_BYTES)


def settings_document(settings: RunSettings) -> bytes:
    """What never changes of a run."""
    return _SETTINGS.dump_json(settings)


def run_document(run: Run) -> bytes:
    """What may change of a run."""
    return _RUN.dump_json(run, exclude={"settings"})


def run_of(settings: bytes, document: bytes) -> Run:
    """The run of both documents."""
    known = {**orjson.loads(document), "settings": _SETTINGS.validate_json(settings)}
    run = _RUN.validate_python(known)
    if run is None:
        raise TypeError("a run's document is null")
    return run


def step_document(step: RunStep) -> bytes:
    """The document of a step."""
    return _STEP.dump_json(step)


def step_of(document: bytes) -> RunStep:
    """The step of a document."""
    return _STEP.validate_json(document)


class RunEventDocuments:
    """Events of runs as the log keeps them."""

    def encode(self, event: RunEvent) -> bytes:
        """An event for the log."""
        return _EVENT.dump_json(event)

    def decode(self, data: bytes) -> RunEvent:
        """An event of the log."""
        return _EVENT.validate_json(data)
