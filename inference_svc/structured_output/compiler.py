"""Compiles grammars: checks sizes, runs the sandbox job, caches results."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from json import dumps
from typing import Any, NamedTuple

from inference_svc.sandbox_jobs import COMPILE_GRAMMAR
from inference_svc.structured_output.spec import OutputFormatKind, OutputSpec
from svc_kit.errors import DomainError, GrammarInvalid, SchemaInvalid
from svc_kit.sandbox.jobs import FailureKind, JobFailed, JobRunner

_MAX_CACHED_GRAMMARS = 128


class GrammarVocabulary(NamedTuple):
    """The part of a vocabulary that grammars use: size, control tokens by text, end tokens."""

    size: int
    control: Mapping[str, int]
    ends: tuple[int, ...]


class GrammarCompiler:
    """Compiles output specifications into validated grammars."""

    def __init__(self, jobs: JobRunner) -> None:
        self._jobs = jobs
        self._cache: OrderedDict[bytes, str] = OrderedDict()

    async def compile(self, spec: OutputSpec, vocabulary: GrammarVocabulary) -> str:
        """Return the grammar of a specification.

        Raises:
            TooLong: A format exceeds its size limit.
            SchemaInvalid: A JSON Schema is invalid or unsupported; has a pointer to the error.
            GrammarInvalid: Another format is invalid.
            QueueFull: Too many grammars are queued.
        """
        spec.check_sizes()
        payload = {"asked": asdict(spec), "vocabulary": vocabulary._asdict()}
        key = blake2b(dumps(payload).encode(), digest_size=16).digest()
        grammar = self._cache.get(key)
        if grammar is None:
            grammar = self._cache[key] = await self._compile(spec, payload, key.hex())
            if len(self._cache) > _MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return grammar

    async def _compile(self, spec: OutputSpec, payload: dict[str, Any], key: str) -> str:
        try:
            result: dict[str, str] = await self._jobs.run(COMPILE_GRAMMAR, payload, key=key)
        except JobFailed as failed:
            raise _compile_error(spec, failed) from None
        if "grammar" in result:
            return result["grammar"]
        if "pointer" in result:
            raise SchemaInvalid(**result)
        raise GrammarInvalid(**result)


def _compile_error(spec: OutputSpec, failed: JobFailed) -> DomainError:
    """The error of a format whose compilation failed or exceeded a limit."""
    problem = failed.problem
    if failed.kind is not FailureKind.REFUSED:
        problem = f"compiling it was stopped: {problem}"
    if spec.form is None:
        return SchemaInvalid(field="tools", pointer="#", problem=problem)
    if spec.form.kind is OutputFormatKind.JSON_SCHEMA:
        return SchemaInvalid(field=spec.form.field, pointer="#", problem=problem)
    return GrammarInvalid(field=spec.form.field, problem=problem)
