"""Constrained output under random patterns, masks, settings and faults."""

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.constraint import Constraint, TokenMask
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Mirostat, Sampling
from inference_svc.llama.sampling.candidates import Candidates
from inference_svc.llama.sampling.chain import SamplerChain
from inference_svc.llama.sampling.native_filters import ModelSizes
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import (
    document,
    faulty_parts,
    schema_grammar,
    without_part,
)
from inference_svc.structured_output.matcher import FEW, GrammarGuides
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request

BYTES, END = 300, 299

# --- the step loop --------------------------------------------------------------------------------

_guided = st.fixed_dictionaries(
    {
        "pattern": st.one_of(st.none(), st.from_regex(r"\A[a-d?]{0,24}\*?\Z")),
        "prompt": st.lists(st.integers(97, 99), min_size=1, max_size=20),
        "max_tokens": st.integers(0, 30),
        "at": st.integers(0, 12),
        "cancel_after": st.one_of(st.none(), st.integers(0, 10)),
        "pause_after": st.one_of(st.none(), st.integers(0, 5)),
        "resume": st.integers(0, 8),
    }
)


def _sequence(i: int, plan: dict[str, Any], resumed: list[int]) -> SequenceRequest:
    pattern = plan["pattern"]
    return make_request(
        i,
        prompt=plan["prompt"],
        max_tokens=plan["max_tokens"],
        constraint=None if pattern is None else Constraint(pattern, "constraint"),
        resumed=array("i", resumed),
    )


def _tokens_alone(plan: dict[str, Any]) -> list[int]:
    bench = EngineBench(FakeBackend(NativeLimits(24, 3, 3, 64, VOCABULARY_SIZE), end_after=20))
    bench.submit(_sequence(0, plan, []))
    bench.run()
    return bench.tokens(0)


@settings(max_examples=examples(60), deadline=None)
@given(
    plans=st.lists(_guided, min_size=1, max_size=7),
    failing=st.sets(st.integers(0, 60), max_size=6),
    builds_after=st.integers(0, 4),
)
def test_constrained_sequences_emit_the_same_tokens_as_alone(
    plans: list[dict[str, Any]], failing: set[int], builds_after: int
) -> None:
    """Other sequences, cancellations, pauses, resumption and failed decodes change no token, and
    all constrained text matches its pattern."""
    calls = iter(range(10**6))

    def fails(batch: TokenBatch) -> int:
        return -1 if next(calls) in failing and len(set(batch.slots.tolist())) > 1 else 0

    limits = NativeLimits(24, 3, 3, 64, VOCABULARY_SIZE)
    backend = FakeBackend(limits, end_after=20, fails=fails, builds_after=builds_after)
    bench = EngineBench(backend, chunk_cap=8)
    full = [_tokens_alone(plan) for plan in plans]
    resumed = [tokens[: plan["resume"]] for tokens, plan in zip(full, plans, strict=True)]
    for step in range(2000):
        for i, plan in enumerate(plans):
            if plan["at"] == step:
                bench.submit(_sequence(i, plan, resumed[i]))
            if plan["cancel_after"] is not None and plan["at"] + plan["cancel_after"] == step:
                bench.engine.cancel(i, arrived_in_step=step, step=step)
            if plan["pause_after"] is not None:
                since = step - plan["at"] - plan["pause_after"]
                bench.engine.pause(i, paused=0 <= since < 4)
        bench.call()
        if step > 25 and not bench.engine.has_sequences:
            break

    assert not bench.engine.has_sequences
    assert bench.failures() == {}
    assert all(guide.closed for guide in backend.guides)
    for i, plan in enumerate(plans):
        tokens = resumed[i] + bench.tokens(i)
        assert tokens == (full[i] if plan["cancel_after"] is None else full[i][: len(tokens)])
        assert len(tokens) <= plan["max_tokens"]
        if plan["pattern"] is not None:
            _check_pattern(plan["pattern"], bytes(token for token in tokens if token < 256))


def _check_pattern(pattern: str, said: bytes) -> None:
    head = pattern.removesuffix("*")[: len(said)].replace("?", "[a-z]")
    assert re.fullmatch(head + ("[a-z]*" if pattern.endswith("*") else ""), said.decode())


# --- masks and samplers ---------------------------------------------------------------------------

_samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 1, 40]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.3]),
    typical_p=st.sampled_from([0.5, 1.0]),
    xtc_probability=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    mirostat=st.sampled_from([None, None, Mirostat(1), Mirostat(2)]),
    allowed_token_ids=st.sampled_from([(), (3, 17, 4999)]),
    logit_bias=st.sampled_from([(), ((7, -100.0), (8, 100.0))]),
) | st.just(Sampling(adaptive=Adaptive(0.4)))
_SIZE = 6000
_SCRATCH = Candidates(_SIZE)


@settings(max_examples=examples(120), deadline=None)
@given(
    sampling=_samplings,
    share=st.sampled_from([0.0, 0.001, 0.3, 0.9]),
    seed=st.integers(0, 2**32 - 1),
    forbids_end=st.booleans(),
)
def test_sampled_tokens_are_allowed(
    sampling: Sampling, share: float, seed: int, forbids_end: bool
) -> None:
    """For any sampling settings; the row of logits is not changed."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 4, _SIZE).astype(np.float32)
    allowed = rng.random(_SIZE) < share
    allowed[rng.integers(_SIZE)] = True
    few = np.flatnonzero(allowed).astype(np.int32) if allowed.sum() <= FEW else None
    request = make_request(sampling=sampling, seed=seed, min_tokens=5 if forbids_end else 0)
    end_tokens = np.array([3, 17], np.int32)
    chain = SamplerChain(request, ModelSizes(None, _SIZE, 2048), end_tokens, lambda token: b"x")
    before = row.copy()
    token = chain.sample(row, 1, _SCRATCH, TokenMask(allowed, few))
    chain.close()

    assert allowed[token]
    assert (row == before).all()


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 40]))
def test_small_and_large_masks_sample_the_same_token(seed: int, top_k: int) -> None:
    """Sampling from the allowed tokens only equals sampling from the masked row."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 2, _SIZE).astype(np.float32)
    allowed = rng.random(_SIZE) < 0.5
    few = np.flatnonzero(allowed).astype(np.int32)
    request = make_request(sampling=Sampling(top_k=top_k, top_p=0.9), seed=seed)
    chain = SamplerChain(
        request, ModelSizes(None, _SIZE, 2048), np.empty(0, np.int32), lambda token: b"x"
    )
    listed = chain.sample(row, 0, _SCRATCH, TokenMask(allowed, few))
    masked = chain.sample(row, 0, _SCRATCH, TokenMask(allowed, None))
    chain.close()

    assert listed == masked


# --- grammars -------------------------------------------------------------------------------------

_leaves = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "integer", "minimum": -3, "maximum": 12},
        {"type": "string", "maxLength": 4},
        {"enum": ["a", "ab", "é\U0001f98a", 1, None]},
        {"const": {"k": [1, 2.5]}},
    ]
)
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.dictionaries(st.text("ab/~é0", max_size=3), inner, max_size=3).map(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:2],
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def guides() -> Iterator[GrammarGuides]:
    grammar_guides = GrammarGuides(lambda: byte_tokenizer(BYTES, {}, [END]), BYTES)
    yield grammar_guides
    grammar_guides.close()


@settings(max_examples=examples(40), deadline=None)
@given(schema=_schemas, seed=st.integers(0, 2**32 - 1))
def test_walks_inside_a_schema_end_in_valid_json(
    guides: GrammarGuides, schema: dict[str, Any], seed: int
) -> None:
    """Tokens are any allowed ones and forced runs. Replaying a prefix results in the same mask, and
    the masks allow exactly the forced tokens."""
    constraint = Constraint(document([schema_grammar(schema)]), "constraint")
    walk, stepwise = guides.new(constraint), guides.new(constraint)
    assert walk.wait(30)
    assert stepwise.wait(30)
    rng = np.random.default_rng(seed)
    said: list[int] = []
    while not walk.is_finished and len(said) < 400:
        for token in walk.forced_tokens(5):
            assert stepwise.mask().allowed.nonzero()[0].tolist() == [token]
            stepwise.accept([token])
            said.append(token)
        if walk.is_finished:
            break
        few = walk.mask().few
        assert few is not None
        token = int(rng.choice(few))
        if token == END:
            break
        walk.accept([token])
        stepwise.accept([token])
        said.append(token)
        replayed = guides.new(constraint)
        assert replayed.wait(30)
        replayed.accept(said)
        assert replayed.is_finished == walk.is_finished
        if not walk.is_finished:
            assert (replayed.mask().allowed == walk.mask().allowed).all()
        replayed.close()
    walk.close()
    json.loads(bytes(said))


@given(schema=_schemas, data=st.data())
def test_the_pointer_of_an_error_finds_the_invalid_subschema(
    schema: dict[str, Any], data: st.DataObject
) -> None:
    """One subschema is invalid, at any depth and under any name. Without it the others stay."""
    schema = json.loads(json.dumps(schema))  # equal subschemas become separate objects
    subschemas = list(_subschemas(schema, "#"))
    pointer, broken = data.draw(st.sampled_from(subschemas))
    broken["broken"] = True

    def is_faulty(part: Any, _: Any) -> bool:
        return '"broken": true' in json.dumps(part)

    assert list(faulty_parts(schema, is_faulty)) == [pointer]
    rest = without_part(schema, pointer)
    broken.clear()
    assert rest == schema


@given(schema=_schemas)
def test_each_subschema_is_checked_once_to_find_all_invalid_ones(schema: dict[str, Any]) -> None:
    """If all are invalid, those without subschemas are found."""
    schema = json.loads(json.dumps(schema))
    subschemas = list(_subschemas(schema, "#"))
    checked = list[int]()

    def is_faulty(part: Any, _: Any) -> bool:
        checked.append(id(part))
        return True

    pointers = [pointer for pointer, _ in subschemas]
    leaves = [one for one in pointers if not any(other.startswith(f"{one}/") for other in pointers)]
    assert list(faulty_parts(schema, is_faulty)) == leaves
    assert sorted(checked) == sorted(id(part) for _, part in subschemas[1:])


def _subschemas(schema: dict[str, Any], pointer: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield pointer, schema
    if isinstance(schema.get("items"), dict):
        yield from _subschemas(schema["items"], f"{pointer}/items")
    for name, child in schema.get("properties", {}).items():
        escaped = name.replace("~", "~0").replace("/", "~1")
        yield from _subschemas(child, f"{pointer}/properties/{escaped}")
