"""Each cell of docs/reference/engines.md: what is honoured is sent, and all else is refused."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling, Stage
from inference_svc.engine_client.features import NEUTRAL_SAMPLING, Features
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.upstream.engine_api import EngineApi, Generation
from inference_svc.upstream.llama_server import LlamaServer
from inference_svc.upstream.pieces import PieceIndex
from inference_svc.upstream.sglang import Sglang
from inference_svc.upstream.vllm import Vllm
from svc_kit.errors import FeatureUnsupported
from tests.support.byte_engine import ByteVocabulary
from tests.support.engine_features import recorded_features
from tests.support.sequences import make_request

PAGE: Final = Path(__file__).parents[4] / "docs" / "reference" / "engines.md"
APIS: Final[Mapping[str, EngineApi]] = {
    "vllm": Vllm(),
    "sglang": Sglang(),
    "llama_server": LlamaServer(PieceIndex(ByteVocabulary())),
}
"""In the order of the columns."""
FORMS: Final[Mapping[str, OutputFormat]] = {
    f"{name}, in its own form": OutputFormat(kind, text, "constraint.form")
    for name, kind, text in (
        ("JSON Schema", OutputFormatKind.JSON_SCHEMA, '{"type": "object"}'),
        ("regular expressions", OutputFormatKind.REGEX, "[ab]+"),
        ("one of several texts", OutputFormatKind.CHOICES, '["a", "b"]'),
        ("grammars in Lark", OutputFormatKind.LARK, 'start: "a"'),
        ("grammars in GBNF", OutputFormatKind.GBNF, 'root ::= "a"'),
    )
}
GRAMMAR: Final = Constraint('{"grammars": [{"lark_grammar": "start: \\"a\\""}]}', "tools")
_LOGPROBS: Final = "log probabilities of the most probable tokens"
_GRAMMARS: Final = "everything that Corral's grammars enforce"
_PREFIXES: Final = "computed prefixes, apart for each project"


@dataclass(frozen=True)
class Change:
    """A value of a field that acts, with those of others without which it would not."""

    changes: Mapping[str, Any]
    others: Mapping[str, Any] = field(default_factory=dict)

    def requests(self) -> tuple[SequenceRequest, SequenceRequest]:
        """A request without the value, and one with it."""
        return (_request(self.others), _request({**self.others, **self.changes}))


def _request(changes: Mapping[str, Any]) -> SequenceRequest:
    names = Sampling.__slots__
    sampling = {name: value for name, value in changes.items() if name in names}
    rest = {name: value for name, value in changes.items() if name not in names}
    return make_request(sampling=replace(NEUTRAL_SAMPLING, **sampling), **rest)


FIELDS: Final[Mapping[str, Change]] = {
    "temperature": Change({"temperature": 0.5}),
    "dynatemp_range": Change({"dynatemp_range": 0.5}),
    "dynatemp_exponent": Change({"dynatemp_exponent": 2.0}, {"dynatemp_range": 0.5}),
    "top_k": Change({"top_k": 7}),
    "top_p": Change({"top_p": 0.5}),
    "min_p": Change({"min_p": 0.5}),
    "typical_p": Change({"typical_p": 0.5}),
    "top_n_sigma": Change({"top_n_sigma": 1.5}),
    "xtc_probability": Change({"xtc_probability": 0.5}),
    "xtc_threshold": Change({"xtc_threshold": 0.2}, {"xtc_probability": 0.5}),
    "min_keep": Change({"min_keep": 3}),
    "penalty_last_n": Change({"penalty_last_n": 7}, {"presence_penalty": 0.5}),
    "repetition_penalty": Change({"repetition_penalty": 1.5}),
    "frequency_penalty": Change({"frequency_penalty": 0.5}),
    "presence_penalty": Change({"presence_penalty": 0.5}),
    "dry.multiplier": Change({"dry": Dry(0.5)}),
    "mirostat.version": Change({"mirostat": Mirostat(2)}),
    "adaptive.target": Change({"adaptive": Adaptive(0.5)}),
    "logit_bias": Change({"logit_bias": ((1, 2.0),)}),
    "allowed_token_ids": Change({"allowed_token_ids": (1, 2)}),
    "samplers": Change({"stages": (Stage.TOP_P, Stage.TOP_K)}, {"top_k": 7, "top_p": 0.5}),
    "min_tokens": Change({"min_tokens": 2}),
    "ignore_eos": Change({"ignore_eos": True}),
}


def features_of(kind: str) -> Features:
    """What was found at an engine."""
    found = recorded_features()[kind]
    return Features(
        **{
            **found,
            "sampling": frozenset(found["sampling"]),
            "constraints": frozenset(map(OutputFormatKind, found["constraints"])),
            "grammar_flag": "" if found["takes_grammars"] else found["grammar_flag"],
        }
    )


def body_of(kind: str, request: SequenceRequest, *, takes_grammars: bool = False) -> Any:
    generation = Generation(request, "m", [1], 9, request.min_tokens, takes_grammars=takes_grammars)
    return json.loads(orjson.dumps(APIS[kind].body(generation)[1]))


def table() -> Iterator[tuple[str, str, str]]:
    """Row, kind and cell."""
    (_, *rows) = re.findall(r"^\| (.+?) \|$", PAGE.read_text(), flags=re.MULTILINE)
    for row in rows:
        name, *cells = row.split(" | ")
        for kind, cell in zip(APIS, cells, strict=True):
            yield name.strip("`"), kind, cell


CELLS: Final = list(table())


def check(features: Features, request: SequenceRequest, name: str, *, is_honoured: bool) -> None:
    if is_honoured:
        features.check(request)
        return
    with pytest.raises(FeatureUnsupported, match=re.escape(name)):
        features.check(request)


def test_each_row_of_the_table_is_tried() -> None:
    names = [*FIELDS, _LOGPROBS, *FORMS, _GRAMMARS, _PREFIXES]
    assert list(dict.fromkeys(name for name, _, _ in CELLS)) == names


@pytest.mark.parametrize(("name", "kind", "cell"), [each for each in CELLS if each[0] in FIELDS])
def test_a_field_is_sent_where_it_is_honoured_and_else_refused(
    name: str, kind: str, cell: str
) -> None:
    features, change = features_of(kind), FIELDS[name]
    without, request = change.requests()
    if cell == "yes":
        assert name not in features.missing_sampling(request.sampling)
        assert body_of(kind, request) != body_of(kind, without)
    else:
        assert cell == "no"
        others = {f"'{each}'" for each in features.missing_sampling(without.sampling)}
        with pytest.raises(FeatureUnsupported) as refused:
            features.check(request)
        assert any(each in refused.value.message for each in {f"'{name}'", *others})
    if not change.others:
        check(features, request, f"'{name}'", is_honoured=cell == "yes")


@pytest.mark.parametrize(("kind", "cell"), [each[1:] for each in CELLS if each[0] == _LOGPROBS])
def test_log_probabilities_have_the_limit_of_the_engine(kind: str, cell: str) -> None:
    features, most = features_of(kind), int(cell.removeprefix("at most "))
    request = make_request(top_logprobs=most)
    check(features, request, "", is_honoured=True)
    check(features, make_request(top_logprobs=most + 1), f"above {most}", is_honoured=False)
    assert body_of(kind, request) != body_of(kind, make_request())


@pytest.mark.parametrize(("name", "kind", "cell"), [each for each in CELLS if each[0] in FORMS])
def test_a_format_is_sent_in_the_form_of_the_engine_or_refused(
    name: str, kind: str, cell: str
) -> None:
    features, form = replace(features_of(kind), takes_grammars=False), FORMS[name]
    request = make_request(constraint=Constraint("", form.field, form))
    check(features, request, f"'{form.field}'", is_honoured=cell == "yes")
    if cell == "yes":
        assert body_of(kind, request) != body_of(kind, make_request())


@pytest.mark.parametrize(("kind", "cell"), [each[1:] for each in CELLS if each[0] == _GRAMMARS])
def test_our_grammars_are_sent_or_refused_with_the_flag(kind: str, cell: str) -> None:
    features, request = features_of(kind), make_request(constraint=GRAMMAR)
    flag = cell.removeprefix("only ").removeprefix("with ")
    check(features, request, flag, is_honoured=not cell.startswith("only"))
    body = json.dumps(body_of(kind, request, takes_grammars=True))
    assert 'start: \\"a\\"' in body


@pytest.mark.parametrize(("kind", "cell"), [each[1:] for each in CELLS if each[0] == _PREFIXES])
def test_an_engine_that_keeps_projects_apart_gets_their_salts(kind: str, cell: str) -> None:
    assert features_of(kind).separates_projects == (cell == "yes")
    bodies = [json.dumps(body_of(kind, make_request(cache_key=key))) for key in (b"one", b"two")]
    assert (bodies[0] != bodies[1]) == (cell == "yes")
