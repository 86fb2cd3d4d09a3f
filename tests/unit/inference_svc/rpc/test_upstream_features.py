"""Requests to a model of an upstream engine: what that would ignore is refused before it runs."""

from dataclasses import replace
from typing import Any

import pytest
from corral.inference.v1 import chat_pb2, generation_pb2, sampling_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.engine_client.features import Features
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.output_format import OutputFormat, OutputFormatKind
from svc_kit.errors import FeatureUnsupported
from tests.support.generations import Generations

FEATURES = Features(
    "vllm 0.33.0",
    frozenset({"top_k", "top_p", "min_p", "repetition_penalty"}),
    frozenset({OutputFormatKind.JSON_SCHEMA}),
    grammar_flag="--structured-outputs-config.backend guidance",
    max_logprobs=5,
)
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
Options = generation_pb2.GenerationOptions


async def upstream(vocabulary: Vocabulary, features: Features = FEATURES) -> Generations:
    generations = await Generations(vocabulary).start()
    engine = generations.engine
    engine.ready = replace(engine.ready, features=features)
    return generations


def chat(options: Options | None = None, **fields: Any) -> pb.ChatRequest:
    message = chat_pb2.ChatMessage(
        role=chat_pb2.ROLE_USER, parts=[chat_pb2.ContentPart(text="Is it sunny in Rome?")]
    )
    conversation = pb.Conversation(messages=[message], **fields)
    return pb.ChatRequest(conversation=conversation, options=options)


def tool(*, strict: bool) -> chat_pb2.Tool:
    return chat_pb2.Tool(name="weather", parameters_json=SCHEMA, strict=strict)


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        (Options(sampling=sampling_pb2.SamplingParams(typical_p=0.5)), "typical_p"),
        (Options(constraint=generation_pb2.Constraint(regex="a+")), "constraint.regex"),
        (Options(output=generation_pb2.OutputOptions(top_logprobs=6)), "logprobs"),
        (Options(output=generation_pb2.OutputOptions(prompt_logprobs=0)), "prompt_logprobs"),
        (Options(deterministic=True), "deterministic"),
    ],
)
async def test_what_the_engine_would_ignore_is_refused_by_name(
    vocabulary: Vocabulary, options: Options, feature: str
) -> None:
    """Nothing is queued or held."""
    generations = await upstream(vocabulary)

    with pytest.raises(FeatureUnsupported, match=rf"{feature}.* with the engine vllm 0\.33\.0"):
        await generations.run(chat(options))
    assert generations.engine.submitted == []
    assert generations.held() == (0, 0, 0)


async def test_an_output_format_goes_to_the_engine_as_the_caller_wrote_it(
    vocabulary: Vocabulary,
) -> None:
    generations = await upstream(vocabulary)
    await generations.run(chat(Options(constraint=generation_pb2.Constraint(json_schema=SCHEMA))))

    (request,) = generations.engine.submitted
    assert request.constraint is not None
    field = "constraint.json_schema"
    assert request.constraint.form == OutputFormat(OutputFormatKind.JSON_SCHEMA, SCHEMA, field)


@pytest.mark.parametrize(
    ("features", "options"),
    [
        (FEATURES, Options()),
        (
            replace(FEATURES, takes_grammars=True),
            Options(
                sampling=sampling_pb2.SamplingParams(seed=1),
                resume=[generation_pb2.ResumedChoice(output_token_ids=[5])],
            ),
        ),
    ],
)
async def test_calls_of_tools_that_are_not_strict_are_free_and_named_as_ignored(
    vocabulary: Vocabulary, features: Features, options: Options
) -> None:
    """The schemas of their arguments are not enforced: by an engine that takes no grammars, and
    where a turn goes on within them, as those of runs do after a crash."""
    generations = await upstream(vocabulary, features)
    (first, *_) = await generations.run(chat(options, tools=[tool(strict=False)]))

    (request,) = generations.engine.submitted
    assert request.constraint is None
    assert list(first.accepted.ignored_options) == ["tools[0].parameters_json"]


@pytest.mark.parametrize("conversation", [
    {"tools": [tool(strict=True)]},
    {
        "tools": [tool(strict=False)],
        "tool_choice": chat_pb2.ToolChoice(mode=chat_pb2.ToolChoice.MODE_REQUIRED),
    },
])  # fmt: skip
async def test_calls_that_must_be_enforced_need_an_engine_that_takes_grammars(
    vocabulary: Vocabulary, conversation: dict[str, Any]
) -> None:
    """The error names what to start the engine with."""
    generations = await upstream(vocabulary)
    with pytest.raises(FeatureUnsupported, match="start it with --structured-outputs-config"):
        await generations.run(chat(**conversation))

    generations = await upstream(vocabulary, replace(FEATURES, takes_grammars=True))
    await generations.run(chat(**conversation))
    (request,) = generations.engine.submitted
    assert request.constraint is not None
    assert request.constraint.form is None
    assert "lark_grammar" in request.constraint.grammar
