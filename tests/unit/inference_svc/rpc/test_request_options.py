"""Protos to engine requests: defaults, limits, and every refusal by its field."""

import math
from dataclasses import replace
from typing import Any

import pytest
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import sampling_pb2 as sampling_pb
from google.protobuf.duration_pb2 import Duration

from inference_svc.engine.request import (
    MAX_DRAFT,
    NO_ADAPTERS,
    AppliedAdapter,
    SequenceRequest,
    StoredObjectRef,
)
from inference_svc.engine.sampling_params import Sampling
from inference_svc.rpc.prefix_policy import NO_GROUPS, PrefixGroups
from inference_svc.rpc.request_options import Prompt, Target, to_requests
from svc_kit.auth.principal import Principal, Priority
from svc_kit.errors import (
    ContextLengthExceeded,
    DomainError,
    FeatureUnsupported,
    InvalidField,
    MissingField,
    OutOfRange,
    ServiceOnly,
    TokenOutOfVocabulary,
    TooLong,
)

TARGET = Target("demo", vocabulary_size=100, slot_tokens=64, default_sampling=Sampling(top_k=7))
CALLER = Principal(
    project="p", scopes=frozenset({"inference"}), priority=Priority.NORMAL, key_id="k"
)


def _convert(
    options: pb.GenerationOptions | None = None, tokens: tuple[int, ...] = (1, 2, 3)
) -> list[SequenceRequest]:
    return to_requests(
        options or pb.GenerationOptions(), Prompt(tokens, "prompt"), TARGET, CALLER, None
    )


def _options(**fields: Any) -> pb.GenerationOptions:
    return pb.GenerationOptions(**fields)


def test_unset_fields_take_the_models_defaults() -> None:
    """Only what the caller set differs from them."""
    options = _options(sampling=sampling_pb.SamplingParams(temperature=0.0, min_p=0.0))

    (request,) = _convert(options)

    assert request.sampling == Sampling(temperature=0.0, min_p=0.0, top_k=7)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_request_reuses_nothing(*, deterministic: bool) -> None:
    """Cells that were computed in company are not the same twice."""
    (request,) = _convert(_options(deterministic=deterministic))

    assert (request.deterministic, request.reuse) == (deterministic, not deterministic)


def test_prefixes_of_different_adapters_have_different_keys() -> None:
    """Every scale and every file its own; without adapters the key is what it was."""
    stacks = [
        NO_ADAPTERS,
        *((AppliedAdapter(digest, scale),) for digest in "ab" for scale in (0.5, 1.0)),
        (AppliedAdapter("a", 1.0), AppliedAdapter("b", 1.0)),
    ]
    found = [
        to_requests(
            _options(), Prompt((1, 2), "prompt"), replace(TARGET, adapters=stack), CALLER, None
        )[0]
        for stack in stacks
    ]

    assert [request.adapters for request in found] == stacks
    assert len({request.cache_key for request in found}) == len(stacks)
    assert found[0].cache_key == _convert()[0].cache_key


def test_each_choice_is_a_request_with_the_same_seed() -> None:
    """Choices differ by their number only, which draws take in."""
    requests = _convert(_options(num_choices=3))

    assert [request.choice for request in requests] == [0, 1, 2]
    assert len({request.seed for request in requests}) == 1


def test_output_is_bounded_by_what_the_context_has_left() -> None:
    """Unset and too large limits both become the rest of the window."""
    (unset,) = _convert()
    (large,) = _convert(_options(stopping=pb.StoppingParams(max_tokens=1000)))
    (small,) = _convert(_options(stopping=pb.StoppingParams(max_tokens=5)))

    assert (unset.max_tokens, large.max_tokens, small.max_tokens) == (61, 61, 5)


def test_projects_and_salts_have_caches_of_their_own() -> None:
    """No pair of project and salt can be mistaken for another."""

    def key(project: str, salt: str) -> bytes:
        caller = Principal(project=project, scopes=frozenset(), key_id="k")
        options = _options(cache=pb.CacheOptions(salt=salt))
        return to_requests(options, Prompt((1,), "prompt"), TARGET, caller, None)[0].cache_key

    assert len({key("a", ""), key("b", ""), key("a", "b"), key("ab", ""), key("", "ab")}) == 5


def test_projects_of_a_group_share_and_nobody_else() -> None:
    """Projects outside of it do not share, nor one with the group's name; salts still separate."""
    groups = PrefixGroups({"team": ["red", "green"]})

    def key(project: str, salt: str = "", groups: PrefixGroups = groups) -> bytes:
        caller = Principal(project=project, scopes=frozenset(), key_id="k")
        options = _options(cache=pb.CacheOptions(salt=salt))
        (request,) = to_requests(options, Prompt((1,), "prompt"), TARGET, caller, None, groups)
        return request.cache_key

    assert key("red") == key("green")
    assert key("red", "s") == key("green", "s")
    apart = ("red", ""), ("red", "s"), ("blue", ""), ("team", ""), ("group 4:team", ""), ("", "")
    assert len({key(project, salt) for project, salt in apart}) == len(apart)
    assert key("blue") == key("blue", groups=NO_GROUPS)


def test_resumed_tokens_reach_their_choice() -> None:
    """And the seed is the caller's."""
    options = _options(
        num_choices=2,
        sampling=sampling_pb.SamplingParams(seed=9),
        resume=[pb.ResumedChoice(index=1, output_token_ids=[4, 5])],
    )

    first, second = _convert(options)

    assert (list(first.resumed), list(second.resumed), second.seed) == ([], [4, 5], 9)


BAD: dict[str, tuple[pb.GenerationOptions, type[DomainError], str | None]] = {
    "temperature nan": (
        _options(sampling=sampling_pb.SamplingParams(temperature=math.nan)),
        OutOfRange,
        "temperature",
    ),
    "top_p infinite": (
        _options(sampling=sampling_pb.SamplingParams(top_p=math.inf)),
        OutOfRange,
        "top_p",
    ),
    "window over the context": (
        _options(sampling=sampling_pb.SamplingParams(penalty_last_n=65)),
        OutOfRange,
        "penalty_last_n",
    ),
    "bias of an unknown token": (
        _options(
            sampling=sampling_pb.SamplingParams(
                logit_bias=[sampling_pb.LogitBias(token_id=100, bias=1)]
            )
        ),
        TokenOutOfVocabulary,
        "logit_bias",
    ),
    "no choices": (_options(num_choices=0), OutOfRange, "n"),
    "too many choices": (_options(num_choices=129), OutOfRange, "n"),
    "negative limit": (
        _options(stopping=pb.StoppingParams(max_tokens=-1)),
        OutOfRange,
        "max_tokens",
    ),
    "too many stops": (_options(stopping=pb.StoppingParams(stop=["x"] * 17)), DomainError, "stop"),
    "a long stop": (_options(stopping=pb.StoppingParams(stop=["x" * 257])), DomainError, "stop"),
    "an empty stop": (_options(stopping=pb.StoppingParams(stop=[""])), DomainError, "stop"),
    "an unknown stop token": (
        _options(stopping=pb.StoppingParams(stop_token_ids=[-1])),
        TokenOutOfVocabulary,
        "stop_token_ids",
    ),
    "too many logprobs": (
        _options(output=pb.OutputOptions(top_logprobs=21)),
        OutOfRange,
        "top_logprobs",
    ),
    "a class above the caller's": (
        _options(scheduling=pb.SchedulingOptions(priority=pb.PRIORITY_INTERACTIVE)),
        OutOfRange,
        "priority",
    ),
    "a negative queue time": (
        _options(scheduling=pb.SchedulingOptions(queue_timeout=Duration(seconds=-1))),
        OutOfRange,
        "queue_timeout",
    ),
    "a queue time that Python cannot hold": (
        _options(scheduling=pb.SchedulingOptions(queue_timeout=Duration(seconds=10**15))),
        OutOfRange,
        "queue_timeout",
    ),
    "a long label": (_options(label="x" * 257), DomainError, "label"),
    "two ways to draw": (
        _options(
            sampling=sampling_pb.SamplingParams(
                mirostat=sampling_pb.MirostatParams(version=2),
                adaptive=sampling_pb.AdaptiveParams(target=0.3),
            )
        ),
        InvalidField,
        "adaptive.target",
    ),
    "a long salt": (_options(cache=pb.CacheOptions(salt="x" * 257)), TooLong, "cache.salt"),
    "a long affinity": (
        _options(cache=pb.CacheOptions(affinity="x" * 257)),
        TooLong,
        "cache.affinity",
    ),
    "resume without a seed": (
        _options(resume=[pb.ResumedChoice(output_token_ids=[1])]),
        MissingField,
        "seed",
    ),
    "resume of an unknown choice": (
        _options(sampling=sampling_pb.SamplingParams(seed=1), resume=[pb.ResumedChoice(index=1)]),
        OutOfRange,
        "resume.index",
    ),
    "resume with mirostat": (
        _options(
            sampling=sampling_pb.SamplingParams(
                seed=1, mirostat=sampling_pb.MirostatParams(version=2)
            ),
            resume=[pb.ResumedChoice()],
        ),
        FeatureUnsupported,
        None,
    ),
    "a state to keep that none may reuse": (
        _options(cache=pb.CacheOptions(keep=True, reuse=False)),
        InvalidField,
        "cache.keep",
    ),
    "a state to keep that is not to be reused": (
        _options(deterministic=True, cache=pb.CacheOptions(keep=True)),
        DomainError,
        "cache.keep",
    ),
    "an unknown sampler": (
        _options(
            sampling=sampling_pb.SamplingParams(samplers=[sampling_pb.SAMPLER_KIND_UNSPECIFIED])
        ),
        DomainError,
        "samplers",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_refused_by_field(case: str) -> None:
    """Nothing is queued with a value that no sampler or limit allows."""
    options, kind, field = BAD[case]

    with pytest.raises(kind) as failure:
        _convert(options)

    assert failure.value.field == field


def test_a_snapshot_brings_back_what_tokens_do_not_tell() -> None:
    """With it mirostat may be resumed; each choice has its own."""
    options = _options(
        sampling=sampling_pb.SamplingParams(seed=1, mirostat=sampling_pb.MirostatParams(version=2)),
        resume=[pb.ResumedChoice(index=1, output_token_ids=[4], snapshot_id="snap_1")],
        num_choices=2,
        cache=pb.CacheOptions(keep=True),
    )
    first, second = _convert(options)

    assert (first.snapshot_id, list(first.resumed), first.keep) == ("", [], True)
    assert (second.snapshot_id, list(second.resumed), second.keep) == ("snap_1", [4], True)


SERVICE = replace(CALLER, is_service=True)
KNOWN = replace(TARGET, digest="d1")


def _kept_for(
    object_id: str, caller: Principal, target: Target, **fields: Any
) -> StoredObjectRef | None:
    options = _options(cache=pb.CacheOptions(keep_for=object_id), **fields)
    (request,) = to_requests(options, Prompt((1, 2), "prompt"), target, caller, None)
    return request.keep_for


def test_a_service_says_which_object_a_request_is_part_of() -> None:
    """The engine hears for which model, once that is known."""
    assert _kept_for("thread_1", SERVICE, KNOWN) == StoredObjectRef("thread_1", "d1")
    assert _kept_for("thread_1", SERVICE, TARGET) is None
    assert _kept_for("", CALLER, KNOWN) is None


@pytest.mark.parametrize(
    ("object_id", "caller", "fields", "kind"),
    [
        ("thread_1", CALLER, {}, ServiceOnly),
        ("x" * 129, SERVICE, {}, TooLong),
        ("thread_1", SERVICE, {"deterministic": True}, InvalidField),
    ],
)
def test_bad_objects_are_refused(
    object_id: str, caller: Principal, fields: dict[str, Any], kind: type[DomainError]
) -> None:
    """By whoever may not name one, with a name too long, and where nothing is kept."""
    with pytest.raises(kind) as failure:
        _kept_for(object_id, caller, KNOWN, **fields)
    assert failure.value.field == "cache.keep_for"


def test_a_prompt_over_the_context_is_refused_with_both_numbers() -> None:
    """One token of output must fit behind it."""
    with pytest.raises(ContextLengthExceeded) as failure:
        _convert(tokens=(1,) * 64)

    assert failure.value.metadata["prompt_tokens"] == "64"
    assert failure.value.metadata["context_tokens"] == "64"
    assert len(_convert(tokens=(1,) * 63)) == 1


def test_an_empty_prompt_and_unknown_tokens_are_refused() -> None:
    """By the field the prompt came from."""
    with pytest.raises(MissingField):
        _convert(tokens=())
    with pytest.raises(TokenOutOfVocabulary):
        _convert(tokens=(1, 100))


def test_drafts_are_the_servers_choice_unless_a_request_says_otherwise() -> None:
    """Bounded, forbidden, or as long as a row may be."""

    def asked(**fields: Any) -> int:
        return _convert(_options(speculation=pb.SpeculationOptions(**fields)))[0].max_draft

    assert _convert()[0].max_draft == asked() == asked(enabled=True) == MAX_DRAFT
    assert asked(enabled=False) == asked(enabled=False, max_draft_tokens=4) == 0
    assert asked(max_draft_tokens=4) == 4
    assert asked(max_draft_tokens=32) == MAX_DRAFT


@pytest.mark.parametrize("length", [-1, 0, 33])
def test_a_draft_has_a_range(length: int) -> None:
    """None at all is said by the switch."""
    with pytest.raises(OutOfRange) as caught:
        _convert(_options(speculation=pb.SpeculationOptions(max_draft_tokens=length)))

    assert caught.value.metadata["field"] == "speculation.max_draft_tokens"
