"""The gRPC servicer of VllmEngine, for one model.

Generate and Embed are calls of InferenceService, with its limits, queue, usage and spans. Methods
that are not here (KV events, profiles, FlushCache) are refused as UNIMPLEMENTED.
"""

import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final, NamedTuple

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from dialects.shared.errors import renamed
from inference_svc.engine.events import ModelLoad
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.load import queue_loads
from inference_svc.engine_client.messages import ModelReady
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.pool import ModelPool
from inference_svc.rpc.inference_servicer import InferenceServicer
from inference_svc.vllm_grpc.tokenizer_archive import TokenizerArchive
from inference_svc.vllm_grpc.vllm_requests import rename, to_embed_request, to_generate_request
from inference_svc.vllm_grpc.vllm_responses import ResponseWriter
from svc_kit.auth.principal import current_principal
from svc_kit.errors import AbortedByOperator, FeatureUnsupported
from svc_kit.logs import current_request_id
from svc_kit.rpc.interceptors import accept_call

Context = grpc.aio.ServicerContext[object, object]
_ADVERTISED_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class _Running(NamedTuple):
    """A call of Generate or Embed: the caller's id of it, and our own."""

    caller_id: str
    request_id: str


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Implements VllmEngine over the other servicer's methods and the model pool."""

    def __init__(
        self,
        inference: InferenceServicer,
        pool: ModelPool,
        model: str,
        tokenizer: TokenizerArchive | None,
    ) -> None:
        """`model` is the name of the model that it serves."""
        self._inference = inference
        self._pool = pool
        self._model = model
        self._tokenizer = tokenizer
        self._running: set[_Running] = set()
        self._started_at = time.monotonic()
        self._last_receive_timestamp = 0.0

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Stream the tokens of a continuation."""
        converted = to_generate_request(request, self._allowed_model())
        running, writer = self._add_running(request.request_id), ResponseWriter(request)
        try:
            with renamed(rename):
                async with aclosing(self._inference.Generate(converted, context)) as events:
                    async for event in events:
                        if event.HasField("accepted"):
                            await accept_call(context)
                        for response in writer.add(event):
                            yield response
        except AbortedByOperator:
            for response in writer.abort():
                yield response
        finally:
            self._running.discard(running)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """Embed tokens."""
        converted = to_embed_request(request, self._allowed_model())
        running = self._add_running(request.request_id)
        try:
            with renamed(rename):
                answer = await self._inference.Embed(converted, context)
        finally:
            self._running.discard(running)
        vector = answer.embeddings[0].values
        return pb.EmbedResponse(
            embedding=vector, prompt_tokens=answer.prompt_tokens, embedding_dim=len(vector)
        )

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Abort the caller's own requests. Ids that are not running are ignored, as in vLLM."""
        wanted, project = {*request.request_ids}, current_principal().project
        for running in self._running:
            if running.caller_id in wanted:
                for engine in self._pool.catalog.engines:
                    engine.abort(running.request_id, project=project)
        return pb.AbortResponse()

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        """Whether requests are served. A model that is not loaded is loaded by its first one."""
        state, model_state = self._pool.state, self._pool.catalog.find_model(self._model).state
        if state is not EngineState.SERVING:
            return pb.HealthCheckResponse(message=f"the service is {state.value}")
        is_healthy = model_state in (ModelState.READY, ModelState.AVAILABLE)
        return pb.HealthCheckResponse(
            healthy=is_healthy, message=f"the model is {model_state.value}"
        )

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        """Describe the model, which is loaded for it."""
        name = self._allowed_model()
        async with self._pool.use(self._pool.catalog.find_model(name)) as loaded:
            file, vocabulary = loaded.processor.file, loaded.processor.vocabulary
            context_tokens = _context_tokens(loaded.ready)
            ends = sorted(vocabulary.end_tokens, key=lambda token: (token != vocabulary.eos, token))
            return pb.GetModelInfoResponse(
                # Where routers look for the tokenizer; without it they use what they are told.
                model_path=name if self._tokenizer is not None else "",
                served_model_name=name,
                is_generation=file.generates,
                max_context_length=context_tokens,
                max_req_input_len=context_tokens,
                vocab_size=vocabulary.size,
                model_type=file.architecture,
                eos_token_ids=ends,
                bos_token_id=vocabulary.bos or 0,
                default_sampling_params_json=_sampling_json(loaded.processor.default_sampling),
            )

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Describe the server."""
        engine = self._engine()
        return pb.GetServerInfoResponse(
            active_requests=len(self._running),
            is_paused=self._pool.is_draining,
            last_receive_timestamp=self._last_receive_timestamp,
            uptime_seconds=time.monotonic() - self._started_at,
            server_type="vllm-grpc",
            data_parallel_size=1,
            constrained_decoding_start="first_token",
            max_num_seqs=0 if engine is None or engine.ready is None else engine.ready.slots,
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """Return the load of the model's engine, which is the only rank; zeros while it is down."""
        loads = [_scheduler_load(self._engine())] if request.dp_rank == 0 else []
        return pb.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=version("corral"),
            dp_rank_count=len(loads),
            loads=loads,
        )

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        """Stream an archive of the tokenizer's files, with its digest in the last message."""
        self._allowed_model()
        if self._tokenizer is None:
            feature = (
                "GetTokenizer without the Hugging Face files of the model's tokenizer: set "
                "inference.vllm_engine.tokenizer"
            )
            raise FeatureUnsupported(feature=feature)
        chunks = self._tokenizer.chunks()
        for chunk in chunks[:-1]:
            yield common_pb2.GetTokenizerChunk(data=chunk)
        yield common_pb2.GetTokenizerChunk(data=chunks[-1], sha256=self._tokenizer.sha256)

    def _allowed_model(self) -> str:
        """The model's name. Raises `ModelNotAllowed` if the caller may not use it."""
        current_principal().check_model(self._model)
        return self._model

    def _add_running(self, caller_id: str) -> _Running:
        self._last_receive_timestamp = time.time()
        running = _Running(caller_id, current_request_id())
        self._running.add(running)
        return running

    def _engine(self) -> EngineClient | None:
        return self._pool.catalog.find_model(self._allowed_model()).engine


def _context_tokens(ready: ModelReady) -> int:
    """The context of one sequence; the longest input of a model that only embeds."""
    if ready.slots or ready.embedding is None:
        return ready.slot_tokens
    return ready.embedding.input_tokens


def _sampling_json(sampling: Sampling) -> str:
    """What the model's files or settings say, as vLLM tells the model's generation config. Empty:
    nothing."""
    defaults = Sampling()
    values = {name: getattr(sampling, name) for name in _ADVERTISED_SAMPLING}
    own = {name: value for name, value in values.items() if value != getattr(defaults, name)}
    return json.dumps(own) if own else ""


def _scheduler_load(engine: EngineClient | None) -> pb.SchedulerLoad:
    if engine is None or engine.ready is None:
        return pb.SchedulerLoad()
    report, live = engine.report or ModelLoad(engine.ready.name), engine.sequences.live.values()
    num_waiting = sum(item.is_waiting for item in live)
    # As in vLLM, what only caches hold counts as free.
    used, cells = report.num_used_cells - report.num_idle_cells, engine.ready.num_cells
    usage = used / cells if cells else 0.0
    prompt_tokens = report.prompt_tokens + report.cached_tokens
    return pb.SchedulerLoad(
        num_running_reqs=len(live) - num_waiting,
        num_waiting_reqs=num_waiting,
        num_total_reqs=len(live),
        num_used_tokens=used,
        max_total_num_tokens=cells,
        token_usage=usage,
        utilization=usage,
        cache_hit_rate=report.cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        max_running_requests=engine.ready.slots,
        num_waiting_uncached_tokens=sum(queue.tokens for queue in queue_loads(live)),
    )
