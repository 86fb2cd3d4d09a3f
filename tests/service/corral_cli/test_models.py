"""`corral models` against a gRPC server with scripted models."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import engine_service_pb2_grpc as engine_rpc
from corral.inference.v1 import inference_service_pb2 as inference_pb
from corral.inference.v1 import inference_service_pb2_grpc as inference_rpc
from corral.inference.v1 import model_pb2

from corral_cli.models import models
from svc_kit.errors import EngineRestarting
from svc_kit.errors.status import to_status

Model = model_pb2.Model
Progress = model_pb2.LoadProgress


def make_model(name: str = "small", state: Any = Model.STATE_READY, **more: Any) -> Model:
    return Model(name=name, state=state, **more)


class ScriptedServer(inference_rpc.InferenceServiceServicer, engine_rpc.EngineServiceServicer):
    """Returns scripted models, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.watched: list[Model] = []
        self.listed: list[Model] = []
        """Behind the others."""

    def ListModels(
        self, request: inference_pb.ListModelsRequest, context: grpc.ServicerContext
    ) -> inference_pb.ListModelsResponse:
        if not request.page_token:
            limits = model_pb2.ModelLimits(slots=4, context_tokens=2048)
            first = make_model(resolved_limits=limits, memory_bytes=150 << 20, aliases=["gpt-4o"])
            return inference_pb.ListModelsResponse(models=[first], next_page_token="1")
        failed = make_model("odd", Model.STATE_FAILED, problem="not a GGUF file")
        return inference_pb.ListModelsResponse(
            models=[make_model("big", Model.STATE_AVAILABLE), failed, *self.listed]
        )

    def GetModel(
        self, request: inference_pb.GetModelRequest, context: grpc.ServicerContext
    ) -> inference_pb.GetModelResponse:
        return inference_pb.GetModelResponse(model=make_model(request.model))

    def LoadModel(
        self, request: engine_pb.LoadModelRequest, context: grpc.ServicerContext
    ) -> engine_pb.LoadModelResponse:
        self.requests.append(request)
        if request.model == "later":
            status = to_status(EngineRestarting(retry_after=1.0), "req_1")
            context.set_trailing_metadata(status.trailing_metadata)
            context.abort(status.code, status.details)
        if request.model == "nobody":
            context.abort(grpc.StatusCode.NOT_FOUND, "The model 'nobody' does not exist.")
        return engine_pb.LoadModelResponse(model=make_model(request.model, Model.STATE_LOADING))

    def WatchModels(
        self, request: engine_pb.WatchModelsRequest, context: grpc.ServicerContext
    ) -> Iterator[engine_pb.WatchModelsResponse]:
        for model in self.watched:
            yield engine_pb.WatchModelsResponse(model=model)

    def UnloadModel(
        self, request: engine_pb.UnloadModelRequest, context: grpc.ServicerContext
    ) -> engine_pb.UnloadModelResponse:
        self.requests.append(request)
        return engine_pb.UnloadModelResponse(model=make_model(request.model, Model.STATE_AVAILABLE))


@pytest.fixture
def servicer() -> ScriptedServer:
    return ScriptedServer()


def run(target: str, *arguments: str) -> Result:
    return CliRunner().invoke(models, [*arguments, "--target", target])


def test_the_list_is_a_table(target: str) -> None:
    """With the models of all pages, and why one failed."""
    lines = run(target, "list").output.splitlines()

    assert lines == [
        "MODEL  STATE      MEMORY   USES  CONTEXT   ALIASES",
        "small  ready      150 MiB        4 x 2048  gpt-4o",
        "big    available",
        "odd    failed",
        "odd: not a GGUF file",
    ]


def test_the_list_says_how_replicas_differ(target: str, servicer: ScriptedServer) -> None:
    replicas = model_pb2.ModelReplicas(num_having=2, num_asked=3, other_digests=["ab"])
    servicer.listed = [make_model("some", digest="cd", replicas=replicas)]
    lines = run(target, "list").output.splitlines()

    assert lines[-2:] == [
        "some: on 2 of 3 replicas",
        "some: replicas have different files under this name, with the SHA-256 cd, ab",
    ]


def test_a_model_is_shown_with_all_fields(target: str) -> None:
    """In the text format of protobuf."""
    assert run(target, "show", "small").output == 'name: "small"\nstate: STATE_READY\n'


def test_the_progress_of_a_load_is_shown(target: str, servicer: ScriptedServer) -> None:
    loading = Progress(phase=Progress.PHASE_WEIGHTS, fraction=0.5)
    servicer.watched = [make_model(state=Model.STATE_LOADING, load_progress=loading), make_model()]
    result = run(target, "load", "small", "--slots", "2")

    assert result.exit_code == 0
    assert "weights 50%" in result.output
    assert result.output.splitlines()[-1].split() == ["small", "ready"]
    limits = model_pb2.ModelLimits(slots=2)
    assert servicer.requests == [engine_pb.LoadModelRequest(model="small", limits=limits)]


def test_a_failed_load_is_reported(target: str, servicer: ScriptedServer) -> None:
    """In one line, with exit code 1."""
    servicer.watched = [make_model(state=Model.STATE_FAILED, problem="no such tensor")]
    result = run(target, "load", "small")
    unknown = run(target, "load", "nobody")

    assert (result.exit_code, unknown.exit_code) == (1, 1)
    assert "Error: no such tensor" in result.output
    assert "Error: The model 'nobody' does not exist." in unknown.output


def test_an_unload_may_use_force(target: str, servicer: ScriptedServer) -> None:
    """Only with --force."""
    assert "available" in run(target, "unload", "small").output
    run(target, "unload", "small", "--force")

    assert [request.force for request in servicer.requests] == [False, True]  # type: ignore[attr-defined]


def test_an_unreachable_server_is_distinguished_from_a_busy_one(target: str) -> None:
    """The first error has a remedy; the second is the message of the server."""
    unreachable = run("127.0.0.1:1", "list")
    restarting = run(target, "load", "later")

    assert (unreachable.exit_code, restarting.exit_code) == (1, 1)
    assert unreachable.output.startswith("Error: no server answers at 127.0.0.1:1. Start one in ")
    assert restarting.output == f"Error: {EngineRestarting().message}\n"
