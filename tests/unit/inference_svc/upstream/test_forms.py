"""Output formats in the engines' own forms."""

import json
from array import array

import orjson
import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.upstream.engine_api import EngineApi, Generation
from inference_svc.upstream.llama_server import LlamaServer
from inference_svc.upstream.pieces import PieceIndex
from inference_svc.upstream.sglang import Sglang
from inference_svc.upstream.vllm import Vllm
from tests.support.byte_engine import ByteVocabulary
from tests.support.sequences import make_request


@pytest.mark.parametrize(
    "api", [LlamaServer(PieceIndex(ByteVocabulary())), Vllm(), Sglang()], ids=lambda api: api.name
)
def test_a_schema_goes_to_the_engine_digit_for_digit(api: EngineApi) -> None:
    """Integers of more than 64 bits too."""
    text = '{"const": 123456789012345678901234567890}'
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, text, "constraint.json_schema")
    request = make_request(constraint=Constraint("", form.field, form))
    _, body = api.body(Generation(request, "m", array("i", [1]), 9))

    sent = json.loads(orjson.dumps(body))
    found = [
        sent.get("json_schema"),
        sent.get("structured_outputs", {}).get("json"),
        json.loads(sent.get("sampling_params", {}).get("json_schema", "null")),
    ]
    assert [each for each in found if each is not None] == [json.loads(text)]
