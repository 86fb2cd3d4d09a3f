"""Render docs/reference/engines.md from what the probe finds at engines of others."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from inference_svc.engine_client.features import NEUTRAL, PUBLIC_NAMES
from inference_svc.output_format import OutputFormatKind
from tests.support.engine_features import recorded_features

HEAD: Final = """# Engines

<!-- Written by tools/generate_docs.py; run `make docs` after `python -m tools.record_engine`. -->

Which fields of a request does an engine of others honour? Corral asks each engine when it connects
([engines](../operate/engines.md#what-an-engine-honours)), and what it finds there holds, not this
table. The columns of vLLM and llama-server have what it found at the versions that
`make test-engines` runs. SGLang was not run: its column is of a stand-in that was written by hand
after its sources. Such an engine has the flag for grammars where there is one; llama-server is as
it is built by default.

A field that is not honoured is refused, unless it has the value that changes nothing.
"""
_ORDER: Final = ("vllm", "sglang", "llama_server")
_FORMS: Final = {
    OutputFormatKind.JSON_SCHEMA: "JSON Schema",
    OutputFormatKind.REGEX: "regular expressions",
    OutputFormatKind.CHOICES: "one of several texts",
    OutputFormatKind.LARK: "grammars in Lark",
    OutputFormatKind.GBNF: "grammars in GBNF",
}


def render() -> str:
    """Return the page as Markdown."""
    features = recorded_features()
    found = [features[kind] for kind in _ORDER]
    lines = [
        f"| | {' | '.join(each['engine'] for each in found)} |",
        "|---" * (len(found) + 1) + "|",
    ]
    for name, cell in _rows():
        lines.append(f"| {name} | {' | '.join(cell(each) for each in found)} |")
    return "\n".join([HEAD, *lines]) + "\n"


def _rows() -> Iterator[tuple[str, Callable[[dict[str, Any]], str]]]:
    yield "`temperature`", lambda _: "yes"
    for name in NEUTRAL:
        yield f"`{PUBLIC_NAMES.get(name, name)}`", _has("sampling", name)
    for name in ("min_tokens", "ignore_eos"):
        yield f"`{name}`", _is(name)
    yield "log probabilities of the most probable tokens", _logprobs
    for form, text in _FORMS.items():
        yield f"{text}, in its own form", _has("constraints", form.value)
    yield "everything that Corral's grammars enforce", _grammars
    yield "computed prefixes, apart for each project", _is("separates_projects")


def _has(part: str, name: str) -> Callable[[dict[str, Any]], str]:
    return lambda each: "yes" if name in each[part] else "no"


def _is(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda each: "yes" if each[name] else "no"


def _logprobs(each: dict[str, Any]) -> str:
    return "no" if each["max_logprobs"] is None else f"at most {each['max_logprobs']}"


def _grammars(each: dict[str, Any]) -> str:
    return f"{'with' if each['takes_grammars'] else 'only with'} {each['grammar_flag']}"
