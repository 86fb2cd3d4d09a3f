"""Compiles grammars: checks sizes, runs the sandbox job, caches results."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from json import dumps
from typing import Any

from inference_svc.sandbox_jobs import COMPILE_GRAMMAR
from inference_svc.structured_output.spec import OutputFormatKind, OutputSpec
from svc_kit.errors import DomainError, GrammarInvalid, SchemaInvalid
from svc_kit.sandbox.jobs import FailureKind, JobFailed, JobRunner

_GRAMMARS_KEPT = 128


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """What building a grammar needs of a model: its size, control tokens by text, end tokens."""

    size: int
    control: Mapping[str, int]
    ends: tuple[int, ...]


class GrammarCompiler:
    """Turns what requests ask into grammars that are known to build."""

    def __init__(self, jobs: JobRunner) -> None:
        self._jobs = jobs
        self._known: OrderedDict[bytes, str] = OrderedDict()

    async def compile(self, request: OutputSpec, vocabulary: GrammarVocabulary) -> str:
        """The grammar of what is asked.

        Raises:
            TooLong: a form is over its limit.
            SchemaInvalid: a JSON Schema cannot be used; with the pointer to the place.
            GrammarInvalid: another form cannot be used.
            QueueFull: too many grammars wait to be built.
        """
        request.check_sizes()
        payload = {"asked": asdict(request), "vocabulary": _fields(vocabulary)}
        key = blake2b(dumps(payload).encode(), digest_size=16).digest()
        grammar = self._known.get(key)
        if grammar is None:
            grammar = self._known[key] = await self._compile(request, payload, key.hex())
            if len(self._known) > _GRAMMARS_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return grammar

    async def _compile(self, request: OutputSpec, payload: dict[str, Any], key: str) -> str:
        try:
            result: dict[str, str] = await self._jobs.run(COMPILE_GRAMMAR, payload, key=key)
        except JobFailed as failed:
            raise _overran(request, failed) from None
        if "grammar" in result:
            return result["grammar"]
        if "pointer" in result:
            raise SchemaInvalid(**result)
        raise GrammarInvalid(**result)


def _fields(vocabulary: GrammarVocabulary) -> dict[str, Any]:
    return {
        "size": vocabulary.size,
        "control": dict(vocabulary.control),
        "ends": list(vocabulary.ends),
    }


def _overran(request: OutputSpec, failed: JobFailed) -> DomainError:
    """The error of a form that could not even be looked at."""
    problem = f"building it was ended: {failed.problem}"
    if failed.kind is FailureKind.REFUSED:
        problem = failed.problem
    if request.form is None:
        return SchemaInvalid(field="tools", pointer="#", problem=problem)
    if request.form.kind is OutputFormatKind.JSON_SCHEMA:
        return SchemaInvalid(field=request.form.field, pointer="#", problem=problem)
    return GrammarInvalid(field=request.form.field, problem=problem)
