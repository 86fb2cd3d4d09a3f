"""Compiles grammars: checks sizes, runs the sandbox job, caches results."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from json import dumps
from typing import Any, NamedTuple

from inference_svc.sandbox_jobs import COMPILE_GRAMMAR
from inference_svc.structured_output.spec import OutputFormatKind, OutputSpec
from svc_kit.errors import DomainError, GrammarInvalid, SchemaInvalid
from svc_kit.sandbox.jobs import FailureKind, JobFailed, JobRunner

_MAX_CACHED_GRAMMARS = 128
_MAX_IGNORED = 64
_MAX_IGNORED_CHARACTERS = 256


class GrammarVocabulary(NamedTuple):
    """The part of a vocabulary that grammars use: size, control tokens by text, end tokens."""

    size: int
    control: Mapping[str, int]
    ends: tuple[int, ...]


class CompiledGrammar(NamedTuple):
    """A validated grammar. `ignored` are the fields of the schemas of tools that are not strict and
    that it does not or only partly enforce."""

    text: str
    ignored: tuple[str, ...] = ()


class GrammarCompiler:
    """Compiles output specifications into validated grammars."""

    def __init__(self, jobs: JobRunner) -> None:
        self._jobs = jobs
        self._cache: OrderedDict[bytes, CompiledGrammar] = OrderedDict()

    async def compile(self, spec: OutputSpec, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        """Return the grammar of a specification.

        Raises:
            TooLong: A format exceeds its size limit.
            SchemaInvalid: A JSON Schema is invalid or unsupported; has a pointer to the error.
            GrammarInvalid: Another format is invalid.
            QueueFull: Too many grammars are queued.
        """
        ignored = spec.loose_fields if spec.has_large_tools else set()
        spec = spec.without_schemas(ignored)
        spec.check_sizes()
        key = _key(spec, vocabulary)
        compiled = self._cache.get(key)
        if compiled is None:
            compiled = self._cache[key] = await self._compile(spec, vocabulary, key.hex())
            if len(self._cache) > _MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return compiled._replace(ignored=(*sorted(ignored), *compiled.ignored))

    async def _compile(
        self, spec: OutputSpec, vocabulary: GrammarVocabulary, key: str
    ) -> CompiledGrammar:
        payload = {"asked": asdict(spec), "vocabulary": vocabulary._asdict()}
        try:
            result: dict[str, Any] = await self._jobs.run(COMPILE_GRAMMAR, payload, key=key)
        except JobFailed as failed:
            loose = spec.loose_fields
            if not loose or failed.kind is FailureKind.REFUSED:
                raise _compile_error(spec, failed) from None
            compiled = await self._compile(spec.without_schemas(loose), vocabulary, key)
            return compiled._replace(ignored=tuple(sorted(loose)))
        if "grammar" in result:
            return CompiledGrammar(result["grammar"], _names(result["ignored"]))
        if "pointer" in result:
            raise SchemaInvalid(**result)
        raise GrammarInvalid(**result)


def _names(ignored: Sequence[str]) -> tuple[str, ...]:
    """The fields with the names of members as the caller wrote them. The whole schema of a tool
    stands for a field that is too long, and for each if there are too many."""
    names = [field.replace("~1", "/").replace("~0", "~") for field in ignored]
    longest = _MAX_IGNORED_CHARACTERS if len(names) <= _MAX_IGNORED else 0
    parts = [name.partition("parameters_json") for name in names]
    return tuple(
        dict.fromkeys("".join(part if len(part[2]) <= longest else part[:2]) for part in parts)
    )


def _key(spec: OutputSpec, vocabulary: GrammarVocabulary) -> bytes:
    payload = dumps([asdict(spec), vocabulary])
    return blake2b(payload.encode(), digest_size=16).digest()


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
