"""Opens model processors and creates engines from the settings."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.config import InferenceSettings, LimitSettings
from inference_svc.engine.request import Command
from inference_svc.engine.sampling_params import Mirostat, Sampling, Stage
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.features import NEUTRAL_SAMPLING
from inference_svc.engine_client.local_engine import LocalEngine
from inference_svc.engine_client.messages import LoadProgress
from inference_svc.engine_client.output_stream import ReaderLimits
from inference_svc.engine_client.process import Child
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.media.decoder import MediaDecoder, MediaLimits
from inference_svc.media.encoded_cache import VectorFolder
from inference_svc.media.encoder import Encoder, EncoderLimits
from inference_svc.media.processor import MediaProcessor
from inference_svc.metrics import EngineObserver
from inference_svc.model_pool.catalog import (
    ModelEntry,
    ModelProcessor,
    Processor,
    TextProcessor,
    with_tokens,
)
from inference_svc.model_pool.discovery import added_folders, make_downloads
from inference_svc.model_pool.engine_config import EngineConfigBuilder, upstream_target
from inference_svc.model_settings import ModelSettings, SamplingSettings, TurnFormatSettings
from inference_svc.models.file_identity import verify_files
from inference_svc.models.hf_folder import CONFIG
from inference_svc.models.known_digests import KnownDigests
from inference_svc.models.memory_plan import ResolvedLimits
from inference_svc.models.metadata import ModelClass
from inference_svc.models.projector_file import ProjectorFile
from inference_svc.models.sources import reported_source, resolve_tokenizer
from inference_svc.sampling_messages import from_sampling
from inference_svc.sandbox_jobs import CHECK_VOCABULARY
from inference_svc.upstream.connection import UpstreamConnection
from inference_svc.upstream.endpoints import Mode
from inference_svc.upstream.faults import EngineUnusable, excerpt
from inference_svc.upstream.probe import PinnedIdentity
from inference_svc.upstream.text_mode import TextMode
from inference_svc.upstream.token_mode import TokenMode, already_open
from inference_svc.vocabularies import ModelVocabulary, open_vocabulary
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import DomainError
from svc_kit.lifecycle import StartupError
from svc_kit.metrics import EngineMetrics
from svc_kit.rpc.field_limits import check_limits
from svc_kit.sandbox.jobs import JobFailed
from svc_kit.sandbox.pool import SandboxPool

log = logging.getLogger(__name__)
# `general.sampling.*` keys, named as in llama.cpp, to fields of `Sampling`.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], int | float]]] = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "penalty_last_n": ("penalty_last_n", int),
    "penalty_repeat": ("repetition_penalty", float),
}
_UNKNOWN_SIZE = 2**31 - 1  # which a folder of Hugging Face files may leave out
_STAGES = {stage.value: stage for stage in Stage} | {"typ_p": Stage.TYPICAL_P}


class ModelLoader:
    """The pool's loader. Digests are computed in the background, because reading large model files
    must not delay serving."""

    def __init__(
        self,
        settings: InferenceSettings,
        *,
        num_models: int,
        sandbox: SandboxPool,
        templates: ChatTemplates,
        metrics: EngineMetrics,
    ) -> None:
        self._settings = settings
        self._configs = EngineConfigBuilder(settings, num_models)
        self._sandbox = sandbox
        self._templates = templates
        self._metrics = metrics
        self._known_digests = KnownDigests(settings.data_dir / "digests")
        self._digests: set[asyncio.Task[None]] = set()

    async def check_files(self, entry: ModelEntry) -> None:
        """Raise `StartupError` if the model files changed since they were described."""
        try:
            stamps = await asyncio.to_thread(verify_files, entry.file.stamps, entry.digest)
        except ModelFileInvalid as error:
            raise StartupError(f"model {error.path}: {error.problem}") from error
        entry.file = replace(entry.file, stamps=stamps)

    async def open_processor(self, entry: ModelEntry) -> Processor:
        """Open the vocabulary and chat template of a model, if they are here. Raises
        `StartupError`."""
        file, name = entry.file, entry.name
        if file.problem:
            raise StartupError(file.problem)
        is_text_mode = entry.upstream is not None and entry.upstream.is_text_mode
        sampling = default_sampling(
            None if is_text_mode else file.sampling_hints,
            self._settings.per_model.get(name, ModelSettings()).sampling,
            vocabulary_size=file.vocabulary_size or _UNKNOWN_SIZE,
            context_tokens=file.trained_context_tokens or _UNKNOWN_SIZE,
        )
        if is_text_mode:
            return TextProcessor(name, sampling)
        vocabulary = await self.open_vocabulary(file.path)
        override = self._settings.turn_formats.get(name, TurnFormatSettings()).as_override()
        template = ModelTemplate.for_model(
            file.chat_template,
            vocabulary.token_text(vocabulary.bos),
            vocabulary.token_text(vocabulary.eos),
            vocabulary.control_texts,
            override,
        )
        turn_format, thinking = await self._templates.find_format(template)
        return ModelProcessor(
            file=file,
            vocabulary=vocabulary,
            template=template,
            turn_format=turn_format,
            thinking=thinking,
            tokenizer=PromptTokenizer(
                vocabulary, self._sandbox, file.path, self._settings.limits.prompt_bytes
            ),
            default_sampling=sampling,
        )

    async def open_vocabulary(self, path: Path) -> ModelVocabulary:
        """Open a vocabulary after trying it in a child, which it may abort or exhaust. Raises
        `StartupError`."""
        try:
            await self._sandbox.run(CHECK_VOCABULARY, {"model": str(path)}, key=str(path))
            return await asyncio.to_thread(open_vocabulary, path)
        except JobFailed as failed:
            problem = f"its vocabulary cannot be used: {failed}"
            raise StartupError(f"model {path}: {problem}") from failed
        except ModelFileInvalid as error:
            raise StartupError(f"model {error.path}: {error.problem}") from error

    async def start_media(self, entry: ModelEntry) -> MediaProcessor | None:
        """Start the encoder of the model's projector, if it has one. Raises `StartupError`."""
        projector, settings = entry.file.projector, self._settings.media
        if projector is None:
            return None
        processor = MediaProcessor(
            Encoder(
                self._configs.build_encoder(entry.file, projector),
                EncoderLimits(settings.queued, settings.encode_timeout_s),
            ),
            MediaDecoder(self._sandbox, _media_limits(self._settings.limits)),
            _vector_folder(settings.folder),
            settings.vectors_mib << 20,
        )
        try:
            await processor.start()
        except BaseException as error:
            await processor.close()
            if isinstance(error, StartupError):
                raise StartupError(_mismatch(entry, projector, error)) from error
            raise
        return processor

    def create_engine(
        self,
        entry: ModelEntry,
        limits: ResolvedLimits,
        on_change: Callable[[], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> EngineClient:
        """Create an engine for the model without starting it."""
        config = self._configs.build(
            entry.file,
            entry.requested,
            limits,
            entry.digest,
            takes_media=entry.media is not None,
            joint_tokens=entry.media.ready.joint_tokens if entry.media is not None else 0,
        )
        spawn = LocalEngine(config, lambda: entry.digest).spawn
        return self._create_client(entry, spawn, on_change, on_progress)

    def create_upstream(self, entry: ModelEntry, on_change: Callable[[], None]) -> EngineClient:
        """Create the client of an upstream engine without connecting it."""
        if entry.upstream is None:
            raise StartupError(f"model {entry.name} is served by no upstream")
        target, pin = upstream_target(entry.name, entry.upstream), PinnedIdentity()
        opened = entry.processor
        mode: Mode = TextMode(target)
        if entry.tokenizer_from_engine:
            mode = TokenMode(target, partial(self._open_reported, entry))
        elif isinstance(opened, ModelProcessor):
            mode = TokenMode(target, already_open(opened.vocabulary))

        def spawn(**callbacks: Callable[[Any], None]) -> UpstreamConnection:
            entry.connection = UpstreamConnection(target, mode, pin, **callbacks)
            return entry.connection

        return self._create_client(entry, spawn, on_change, lambda _: None)

    async def _open_reported(self, entry: ModelEntry, reported: str) -> ModelVocabulary:
        """Open the processor of a model with the tokenizer that its engine reports. One that was
        added at run time may only name files in the operator's folders. Raises `EngineUnusable`."""
        try:
            if entry.source and Path(reported).is_absolute():
                path = reported if reported.endswith(".gguf") else f"{reported}/{CONFIG}"
                added_folders(self._settings).find("upstream", path)
            source = reported_source(reported)
            download = make_downloads(self._settings)
            file = await asyncio.to_thread(resolve_tokenizer, source, entry.name, download)
            opened = with_tokens(await self.open_processor(replace(entry, file=file)))
        except (DomainError, StartupError) as error:
            problem = f"it says that its tokenizer is {excerpt(reported)}: {error}"
            raise EngineUnusable(problem) from error
        log.info("model %s: the tokenizer of its engine is %s", entry.name, source)
        before, entry.processor = entry.processor, opened
        entry.file, entry.tokenizer = file, source
        if before is not None:
            await asyncio.to_thread(before.close)
        return opened.vocabulary

    def _create_client(
        self,
        entry: ModelEntry,
        spawn: Callable[..., Child[Command]],
        on_change: Callable[[], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> EngineClient:
        settings, observer = self._settings.engine, EngineObserver(self._metrics)
        media_bytes = self._settings.media.forwarded_mib << 20

        def on_state(state: EngineState) -> None:
            observer.on_state(state)
            on_change()

        engine = EngineClient(
            entry.name,
            spawn,
            QueueLimits(settings.queued_requests, settings.queued_tokens, media_bytes),
            ReaderLimits(settings.unread_events, settings.reader_patience_s),
            on_state=on_state,
            on_event=observer.on_event,
            on_progress=on_progress,
            adapters=entry.adapters,
        )
        observer.bind(engine)
        return engine

    def on_ready(self, entry: ModelEntry, limits: ResolvedLimits | None) -> None:
        """Log the loaded model and start to compute its digest, unless an upstream has it: then its
        engine says whether it only embeds."""
        if limits is None:
            _set_class(entry)
            _log_connected(entry)
            return
        _log_ready(entry, limits)
        if not entry.digest:
            task = asyncio.create_task(find_digest(entry, self._known_digests))
            self._digests.add(task)
            task.add_done_callback(self._digests.discard)

    def close(self) -> None:
        """Stop computing digests."""
        for task in self._digests:
            task.cancel()


def _vector_folder(parent: Path | None) -> VectorFolder:
    try:
        return VectorFolder(parent)
    except OSError as error:
        raise StartupError(f"media.folder: {error.strerror}") from error


def _media_limits(limits: LimitSettings) -> MediaLimits:
    return MediaLimits(image_pixels=limits.image_pixels, audio_s=limits.audio_s)


def _mismatch(entry: ModelEntry, projector: ProjectorFile, error: StartupError) -> str:
    return (
        f"the projector {projector.path} cannot be used with it: {error}. Name another, or set "
        f'per_model.{entry.name}.projector to "none"'
    )


async def find_digest(entry: ModelEntry, known: KnownDigests) -> None:
    """Set the digest of a model's files and wake its waiters. The digest stays empty if a file
    cannot be read or changed since it was described."""
    try:
        entry.digest = await asyncio.to_thread(known.digest, entry.file.stamps)
    except ModelFileInvalid as error:
        log.error("the digest of model %s cannot be computed: %s", entry.name, error)
    finally:
        entry.digest_computed.set()


def _set_class(entry: ModelEntry) -> None:
    ready = entry.engine.ready if entry.engine is not None else None
    classes = (ModelClass.DECODER, ModelClass.ENCODER)
    if ready is None or ready.features is None or entry.file.model_class not in classes:
        return
    entry.file = replace(entry.file, model_class=classes[not ready.features.generates])
    if isinstance(entry.processor, ModelProcessor):
        entry.processor.file = entry.file


def _log_connected(entry: ModelEntry) -> None:
    ready = entry.engine.ready if entry.engine is not None else None
    if ready is None or ready.features is None:
        return
    size = f" of {ready.slot_tokens} tokens" if ready.slot_tokens else ""
    log.info(
        "model %s: served by %s, %d sequences%s at once",
        entry.name,
        ready.features.engine,
        ready.slots,
        size,
    )
    if isinstance(entry.processor, ModelProcessor):
        _log_formats(entry.name, entry.processor.turn_format)


def _log_formats(name: str, turn_format: TurnFormat) -> None:
    log.info(
        "model %s: tool-call format %s, reasoning format %s",
        name,
        turn_format.tool_calls,
        turn_format.reasoning,
    )


def _log_ready(entry: ModelEntry, limits: ResolvedLimits) -> None:
    ready = entry.engine.ready if entry.engine is not None else None
    if ready is None or not isinstance(entry.processor, ModelProcessor):
        return
    warm_up = ready.warm_up
    for device, size in ready.device_bytes.items():
        log.info("model %s: %d MiB on %s", entry.name, size >> 20, device)
    if not entry.file.generates:
        log.info(
            "model %s (%s): ready in %.1f s, inputs up to %d tokens, %d compute thread(s): %s",
            entry.name,
            entry.file.model_class.value,
            ready.load_s,
            ready.slot_tokens,
            warm_up.threads,
            warm_up.reason,
        )
        return
    log.info("model %s: %s", entry.name, limits.reason)
    log.info(
        "model %s: ready in %.1f s, %d slots of %d tokens, %d compute thread(s): %s",
        entry.name,
        ready.load_s,
        ready.slots,
        ready.slot_tokens,
        warm_up.threads,
        warm_up.reason,
    )
    _log_formats(entry.name, entry.processor.turn_format)


def default_sampling(
    hints: Mapping[str, str | float] | None,
    settings: SamplingSettings,
    *,
    vocabulary_size: int,
    context_tokens: int,
) -> Sampling:
    """Return the sampling parameters for fields that a request leaves unset: llama.cpp's, then
    those of the model's file (`general.sampling.*`), then those of the settings. Without `hints`
    they are neutral instead, as for an engine that has its own.

    Raises `StartupError`, with the name of the field, if a value is invalid.
    """
    overrides = {name: value for name, value in settings if value is not None}
    try:
        given = NEUTRAL_SAMPLING if hints is None else _from_hints(hints)
        sampling = replace(given, **overrides)
        check_limits(from_sampling(sampling))
        sampling.validate(vocabulary_size=vocabulary_size, context_tokens=context_tokens)
    except DomainError as error:
        raise StartupError(f"default sampling: {error.message}") from error
    except (TypeError, ValueError) as error:
        raise StartupError(f"general.sampling in the model's file: {error}") from error
    return sampling


def _from_hints(hints: Mapping[str, str | float]) -> Sampling:
    numbers: dict[str, Any] = {
        field: convert(hints[name]) for name, (field, convert) in _FIELDS.items() if name in hints
    }
    return replace(Sampling(), **numbers, mirostat=_mirostat(hints), stages=_stages(hints))


def _mirostat(hints: Mapping[str, str | float]) -> Mirostat | None:
    version = int(hints.get("mirostat", 0))
    parameters = {
        name: float(hints[f"mirostat_{name}"])
        for name in ("tau", "eta")
        if f"mirostat_{name}" in hints
    }
    return Mirostat(version, **parameters) if version else None


def _stages(hints: Mapping[str, str | float]) -> tuple[Stage, ...]:
    """The sampler order. Unknown names are ignored, as in llama.cpp."""
    names = str(hints.get("sequence", "")).split(";")
    return tuple(_STAGES[name] for name in names if name in _STAGES) or Sampling().stages
