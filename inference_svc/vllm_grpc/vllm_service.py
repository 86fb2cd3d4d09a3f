"""Composes the service VllmEngine from its settings."""

import asyncio

from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from inference_svc.config import InferenceSettings
from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.model_pool.discovery import make_downloads
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.sources import resolve_hf_folder
from inference_svc.rpc.inference_servicer import InferenceServicer
from inference_svc.vllm_grpc.tokenizer_archive import (
    OpenVocabulary,
    TokenizerArchive,
    check_tokenizer,
)
from inference_svc.vllm_grpc.vllm_servicer import VllmEngineServicer
from svc_kit.lifecycle import StartupError
from svc_kit.rpc.server import Service


async def open_vllm_engine(
    settings: InferenceSettings,
    open_vocabulary: OpenVocabulary,
    pool: ModelPool,
    inference: InferenceServicer,
) -> Service:
    """Make the service. Raises `StartupError` if the tokenizer is not that of the model."""
    entry = pool.catalog.find_model(settings.vllm_engine.model)
    try:
        tokenizer = await _read_tokenizer(settings, entry, open_vocabulary)
    except StartupError as error:
        raise StartupError(f"vllm_engine.tokenizer: {error}") from None
    return Service(
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server,
        VllmEngineServicer(inference, pool, settings.vllm_engine.model or entry.name, tokenizer),
        vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].full_name,
    )


async def _read_tokenizer(
    settings: InferenceSettings, entry: ModelEntry, open_vocabulary: OpenVocabulary
) -> TokenizerArchive | None:
    source, model = settings.vllm_engine.tokenizer, entry.file
    if not source:
        # That of an upstream is compared with the engine when it is connected.
        is_here = (
            entry.upstream is not None and bool(model.paths) and not entry.tokenizer_from_engine
        )
        is_folder = is_here and model.path.is_dir()
        return await TokenizerArchive.read(model.path) if is_folder else None
    if entry.tokenizer_from_engine:
        raise StartupError(f"name it in upstreams.{entry.name}.tokenizer, which is 'engine'")
    download = make_downloads(settings)
    folder = await asyncio.to_thread(resolve_hf_folder, source, download)
    if model.problem:
        raise StartupError(model.problem)
    await check_tokenizer(model.path, folder, open_vocabulary)
    return await TokenizerArchive.read(folder)
