"""Conversion of generation options to requests: defaults, limits and errors by field."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb
from corral.inference.v1 import sampling_pb2 as sampling_pb
from google.protobuf.duration_pb2 import Duration

from inference_svc.engine.request import (
    MAX_DRAFT,
    NO_ADAPTERS,
    AppliedAdapter,
    ArchiveOwner,
    SequenceRequest,
)
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.client import EngineClient
from inference_svc.model_pool.catalog import LoadedModel, ModelProcessor
from inference_svc.rpc.call import Call, Caller
from inference_svc.rpc.prefix_policy import PrefixGroups
from inference_svc.rpc.request_options import MAX_PROMPT_LOGPROBS, Prompt, to_requests
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
from svc_kit.rpc.field_limits import check_limits

PRINCIPAL = Principal(
    project="p", scopes=frozenset({"inference"}), priority=Priority.NORMAL, key_id="k"
)
SERVICE = replace(PRINCIPAL, is_service=True)
NO_GROUPS = PrefixGroups({})


def _call(
    options: pb.GenerationOptions | None = None,
    principal: Principal = PRINCIPAL,
    *,
    slot_tokens: int = 64,
    digest: str = "",
    groups: PrefixGroups = NO_GROUPS,
    archives_stateless: bool = False,
) -> Call[service_pb.GenerateRequest]:
    vocabulary, defaults = SimpleNamespace(size=100), Sampling(top_k=7)
    model = SimpleNamespace(name="demo", vocabulary=vocabulary, default_sampling=defaults)
    engine = SimpleNamespace(ready=SimpleNamespace(slot_tokens=slot_tokens))
    loaded = LoadedModel(cast(ModelProcessor, model), cast(EngineClient, engine), digest)
    request = service_pb.GenerateRequest(options=options)
    caller, owner = Caller(principal, "r", None), groups.owner(principal.project)
    return Call(request, loaded, caller, owner, archives_stateless)


def _convert(
    options: pb.GenerationOptions | None = None,
    tokens: tuple[int, ...] = (1, 2, 3),
    **changes: Any,
) -> list[SequenceRequest]:
    """Check the limits of a request, as the server does, and convert it. `changes` are arguments of
    `_call`."""
    call = _call(options, **changes)
    check_limits(call.request)
    return to_requests(call, Prompt(tokens, "prompt"))


def _options(**fields: Any) -> pb.GenerationOptions:
    return pb.GenerationOptions(**fields)


def test_unset_sampling_fields_have_the_defaults_of_the_model() -> None:
    """Zero is a value of its own, not unset."""
    options = _options(sampling=sampling_pb.SamplingParams(temperature=0.0, min_p=0.0))

    (request,) = _convert(options)

    assert request.sampling == Sampling(temperature=0.0, min_p=0.0, top_k=7)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_request_does_not_reuse_cached_prefixes(*, deterministic: bool) -> None:
    """Cells that were computed in a shared batch may differ slightly."""
    (request,) = _convert(_options(deterministic=deterministic))

    assert (request.deterministic, request.reuse) == (deterministic, not deterministic)


def test_each_adapter_stack_has_its_own_cache_key() -> None:
    """The key depends on the digest and scale of each adapter."""
    stacks = [
        NO_ADAPTERS,
        *((AppliedAdapter(digest, scale),) for digest in "ab" for scale in (0.5, 1.0)),
        (AppliedAdapter("a", 1.0), AppliedAdapter("b", 1.0)),
    ]
    requests: list[SequenceRequest] = []
    for stack in stacks:
        requests += to_requests(_call(), Prompt((1, 2), "prompt"), stack)

    assert [request.adapters for request in requests] == stacks
    assert len({request.cache_key for request in requests}) == len(stacks)
    assert requests[0].cache_key == _convert()[0].cache_key


def test_each_choice_is_a_request_with_the_same_seed() -> None:
    """Their random draws differ by the index of the choice."""
    requests = _convert(_options(num_choices=3))

    assert [request.choice for request in requests] == [0, 1, 2]
    assert len({request.seed for request in requests}) == 1


def test_max_tokens_is_limited_to_the_remaining_context() -> None:
    (unset,) = _convert()
    (large,) = _convert(_options(stopping=pb.StoppingParams(max_tokens=1000)))
    (small,) = _convert(_options(stopping=pb.StoppingParams(max_tokens=5)))

    assert (unset.max_tokens, large.max_tokens, small.max_tokens) == (61, 61, 5)


def test_each_project_and_salt_has_its_own_cache_key() -> None:
    """Equal concatenations of project and salt have different keys."""

    def key(project: str, salt: str) -> bytes:
        options = _options(cache=pb.CacheOptions(salt=salt))
        return _convert(options, principal=replace(PRINCIPAL, project=project))[0].cache_key

    assert len({key("a", ""), key("b", ""), key("a", "b"), key("ab", ""), key("", "ab")}) == 5


def test_only_projects_of_a_group_share_cache_keys() -> None:
    """Not a project with the name of the group; salts also apply in a group."""
    groups = PrefixGroups({"team": ["red", "green"]})

    def key(project: str, salt: str = "", groups: PrefixGroups = groups) -> bytes:
        options = _options(cache=pb.CacheOptions(salt=salt))
        principal = replace(PRINCIPAL, project=project)
        return _convert(options, principal=principal, groups=groups)[0].cache_key

    assert key("red") == key("green")
    assert key("red", "s") == key("green", "s")
    others = ("red", ""), ("red", "s"), ("blue", ""), ("team", ""), ("group 4:team", ""), ("", "")
    assert len({key(project, salt) for project, salt in others}) == len(others)
    assert key("blue") == key("blue", groups=NO_GROUPS)


def test_resumed_tokens_belong_to_their_choice() -> None:
    """All choices have the seed of the caller."""
    options = _options(
        num_choices=2,
        sampling=sampling_pb.SamplingParams(seed=9),
        resume=[pb.ResumedChoice(index=1, output_token_ids=[4, 5])],
    )

    first, second = _convert(options)

    assert (list(first.resumed), list(second.resumed), second.seed) == ([], [4, 5], 9)


INVALID_OPTIONS: dict[str, tuple[pb.GenerationOptions, type[DomainError], str | None]] = {
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
    "penalty window over the context": (
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
    "too many stop texts": (
        _options(stopping=pb.StoppingParams(stop=["x"] * 17)),
        DomainError,
        "stop",
    ),
    "a stop text that is too long": (
        _options(stopping=pb.StoppingParams(stop=["x", "x" * 257])),
        TooLong,
        "stop[1]",
    ),
    "an empty stop text": (_options(stopping=pb.StoppingParams(stop=[""])), DomainError, "stop"),
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
    "a priority above the caller's": (
        _options(scheduling=pb.SchedulingOptions(priority=pb.PRIORITY_INTERACTIVE)),
        OutOfRange,
        "priority",
    ),
    "a negative queue timeout": (
        _options(scheduling=pb.SchedulingOptions(queue_timeout=Duration(seconds=-1))),
        OutOfRange,
        "queue_timeout",
    ),
    "a queue timeout beyond the range of Python": (
        _options(scheduling=pb.SchedulingOptions(queue_timeout=Duration(seconds=10**15))),
        OutOfRange,
        "queue_timeout",
    ),
    "a label that is too long": (_options(label="x" * 257), DomainError, "label"),
    "mirostat and adaptive-p together": (
        _options(
            sampling=sampling_pb.SamplingParams(
                mirostat=sampling_pb.MirostatParams(version=2),
                adaptive=sampling_pb.AdaptiveParams(target=0.3),
            )
        ),
        InvalidField,
        "adaptive.target",
    ),
    "a salt that is too long": (
        _options(cache=pb.CacheOptions(salt="x" * 257)),
        TooLong,
        "cache.salt",
    ),
    "an affinity that is too long": (
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
    "keep without reuse": (
        _options(cache=pb.CacheOptions(keep=True, reuse=False)),
        InvalidField,
        "cache.keep",
    ),
    "keep of a deterministic request": (
        _options(deterministic=True, cache=pb.CacheOptions(keep=True)),
        DomainError,
        "cache.keep",
    ),
    "an unknown sampler": (
        _options(
            sampling=sampling_pb.SamplingParams(samplers=[sampling_pb.SAMPLER_KIND_UNSPECIFIED])
        ),
        DomainError,
        "samplers[0]",
    ),
}


@pytest.mark.parametrize("case", INVALID_OPTIONS)
def test_invalid_options_are_rejected_with_their_field(case: str) -> None:
    """Each error has its type and names the field."""
    options, kind, field = INVALID_OPTIONS[case]

    with pytest.raises(kind) as failure:
        _convert(options)

    assert failure.value.field == field


def test_mirostat_can_be_resumed_with_a_snapshot() -> None:
    """The snapshot has the state of the sampler; each choice has its own."""
    options = _options(
        sampling=sampling_pb.SamplingParams(seed=1, mirostat=sampling_pb.MirostatParams(version=2)),
        resume=[pb.ResumedChoice(index=1, output_token_ids=[4], snapshot_id="snap_1")],
        num_choices=2,
        cache=pb.CacheOptions(keep=True),
    )
    first, second = _convert(options)

    assert (first.snapshot_id, list(first.resumed), first.keep) == ("", [], True)
    assert (second.snapshot_id, list(second.resumed), second.keep) == ("snap_1", [4], True)


def _convert_keep_for(
    object_id: str, principal: Principal, digest: str, **fields: Any
) -> ArchiveOwner | None:
    options = _options(cache=pb.CacheOptions(keep_for=object_id), **fields)
    (request,) = _convert(options, principal=principal, digest=digest)
    return request.keep_for


def test_a_service_may_name_the_stored_object_of_a_request() -> None:
    """It is ignored until the digest of the model is known."""
    assert _convert_keep_for("thread_1", SERVICE, "d1") == ArchiveOwner("thread_1", "d1")
    assert _convert_keep_for("thread_1", SERVICE, "") is None
    assert _convert_keep_for("", PRINCIPAL, "d1") is None


def test_stateless_requests_are_archived_for_their_project() -> None:
    """Where the settings allow it, unless they share no prefix; a named object comes first."""

    def owner(object_id: str = "", digest: str = "d1", **fields: Any) -> ArchiveOwner | None:
        options = _options(**{"cache": pb.CacheOptions(keep_for=object_id), **fields})
        changes: Any = {"principal": SERVICE, "digest": digest, "archives_stateless": True}
        (request,) = _convert(options, **changes)
        return request.keep_for

    assert owner() == ArchiveOwner("project:p", "d1")
    assert owner("thread_1") == ArchiveOwner("thread_1", "d1")
    assert owner(digest="") is None
    assert owner(cache=pb.CacheOptions(reuse=False)) is None
    assert owner(deterministic=True) is None


@pytest.mark.parametrize(
    ("object_id", "principal", "fields", "kind"),
    [
        ("thread_1", PRINCIPAL, {}, ServiceOnly),
        ("x" * 129, SERVICE, {}, TooLong),
        ("thread_1", SERVICE, {"deterministic": True}, InvalidField),
    ],
)
def test_invalid_stored_objects_are_rejected(
    object_id: str, principal: Principal, fields: dict[str, Any], kind: type[DomainError]
) -> None:
    with pytest.raises(kind) as failure:
        _convert_keep_for(object_id, principal, "d1", **fields)
    assert failure.value.field == "cache.keep_for"


def test_a_prompt_without_space_for_output_is_rejected_with_both_sizes() -> None:
    """One token of output must fit into the context."""
    with pytest.raises(ContextLengthExceeded) as failure:
        _convert(tokens=(1,) * 64)

    assert failure.value.metadata["prompt_tokens"] == "64"
    assert failure.value.metadata["context_tokens"] == "64"
    assert len(_convert(tokens=(1,) * 63)) == 1


def test_an_empty_prompt_and_unknown_tokens_are_rejected() -> None:
    """A token id must be in the vocabulary."""
    with pytest.raises(MissingField):
        _convert(tokens=())
    with pytest.raises(TokenOutOfVocabulary):
        _convert(tokens=(1, 100))


def test_the_draft_length_is_the_maximum_unless_the_request_limits_it() -> None:
    """Disabled, it is 0; larger limits are lowered to the maximum."""

    def max_draft(**fields: Any) -> int:
        return _convert(_options(speculation=pb.SpeculationOptions(**fields)))[0].max_draft

    assert _convert()[0].max_draft == max_draft() == max_draft(enabled=True) == MAX_DRAFT
    assert max_draft(enabled=False) == max_draft(enabled=False, max_draft_tokens=4) == 0
    assert max_draft(max_draft_tokens=4) == 4
    assert max_draft(max_draft_tokens=32) == MAX_DRAFT


@pytest.mark.parametrize("length", [-1, 0, 33])
def test_a_draft_length_outside_its_range_is_rejected(length: int) -> None:
    """From 1 to 32; `enabled` disables drafts."""
    with pytest.raises(OutOfRange) as caught:
        _convert(_options(speculation=pb.SpeculationOptions(max_draft_tokens=length)))

    assert caught.value.metadata["field"] == "speculation.max_draft_tokens"


def test_log_probabilities_of_a_prompt_are_computed_once() -> None:
    """For the first choice, which reuses no prefix but leaves one; the others may."""
    output = pb.OutputOptions(prompt_logprobs=2)
    requests = _convert(_options(output=output, num_choices=2))

    assert [request.prompt_logprobs for request in requests] == [2, None]
    assert [request.may_start_cached for request in requests] == [False, True]
    assert [request.reuse for request in requests] == [True, True]


@pytest.mark.parametrize(("number", "error"), [(21, OutOfRange), (-1, OutOfRange), (20, TooLong)])
def test_log_probabilities_of_a_prompt_are_limited(number: int, error: type[DomainError]) -> None:
    """Both the alternatives of a token, and all of a prompt together."""
    tokens = (1,) * (MAX_PROMPT_LOGPROBS // 21 + 1)
    output = pb.OutputOptions(prompt_logprobs=number)

    with pytest.raises(error, match="prompt_logprobs"):
        _convert(_options(output=output), tokens, slot_tokens=2 * MAX_PROMPT_LOGPROBS)
