"""Opens the fronts of models and starts their engines, as configured."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.config import InferenceSettings, ModelSettings, TurnFormatSettings
from inference_svc.engine_client.client import EngineClient, EngineState
from inference_svc.engine_client.messages import LoadProgress
from inference_svc.engine_client.output_stream import ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.metrics import EngineObserver
from inference_svc.model_pool.catalog import KnownModel, ServedModel
from inference_svc.model_pool.default_sampling import default_sampling
from inference_svc.model_pool.engine_config import EngineConfigBuilder
from inference_svc.models.file_identity import digest_of, verify_files
from inference_svc.models.memory_plan import ResolvedLimits
from model_files.gguf import ModelFileInvalid
from svc_kit.lifecycle import StartupError
from svc_kit.metrics import EngineMetrics
from svc_kit.sandbox.pool import SandboxPool

log = logging.getLogger(__name__)


class ModelLoader:
    """What the pool loads with. Digests are computed beside everything else: reading large files
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
        self._booting = EngineConfigBuilder(settings, num_models)
        self._sandbox = sandbox
        self._templates = templates
        self._metrics = metrics
        self._digests: set[asyncio.Task[None]] = set()

    async def check(self, known: KnownModel) -> None:
        """Raise `StartupError` where a model's files are others than those that were described."""
        try:
            stamps = await asyncio.to_thread(verify_files, known.file.stamps, known.digest)
        except ModelFileInvalid as problem:
            raise StartupError(f"model {problem.path}: {problem.problem}") from problem
        known.file = replace(known.file, stamps=stamps)

    async def open(self, known: KnownModel) -> ServedModel:
        """Open a model's vocabulary and template. Raises `StartupError`."""
        file, name = known.file, known.name
        sampling = default_sampling(
            file.sampling_hints,
            self._settings.per_model.get(name, ModelSettings()).sampling,
            vocabulary_size=file.vocabulary_size,
            context_tokens=file.trained_context_tokens,
        )
        try:
            vocabulary = await asyncio.to_thread(Vocabulary.load, file.path)
        except ModelFileInvalid as problem:
            raise StartupError(f"model {problem.path}: {problem.problem}") from problem
        override = self._settings.turn_formats.get(name, TurnFormatSettings()).as_override()
        template = ModelTemplate.of_model(file.chat_template, vocabulary, override)
        return ServedModel(
            file=file,
            vocabulary=vocabulary,
            template=template,
            turn_format=await self._templates.find_format(template),
            tokenizer=PromptTokenizer(vocabulary, self._sandbox, file.path),
            default_sampling=sampling,
        )

    def engine(
        self,
        known: KnownModel,
        sizes: ResolvedLimits,
        on_change: Callable[[], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> EngineClient:
        """An engine for the model, not started yet."""
        engine, observer = self._settings.engine, EngineObserver(self._metrics)

        def on_state(state: EngineState) -> None:
            observer.on_state(state)
            on_change()

        worker = EngineClient(
            self._booting.boot(known.file, known.requested, sizes, known.digest),
            QueueLimits(engine.queued_requests, engine.queued_tokens),
            ReaderLimits(engine.unread_events, engine.reader_patience_s),
            on_state=on_state,
            on_event=observer.on_event,
            on_progress=on_progress,
            adapters=known.adapters,
        )
        observer.bind(worker)
        return worker

    def announce(self, known: KnownModel, sizes: ResolvedLimits) -> None:
        """Log what was loaded, and begin to compute its digest."""
        _log_ready(known, sizes)
        if not known.digest:
            task = asyncio.create_task(compute_digest(known))
            self._digests.add(task)
            task.add_done_callback(self._digests.discard)

    def close(self) -> None:
        """Stop computing digests."""
        for task in self._digests:
            task.cancel()


async def compute_digest(known: KnownModel) -> None:
    """Learn the digest of a model; it stays empty where a file cannot be read or is another one by
    now, and whoever waits goes on."""
    try:
        known.digest = await asyncio.to_thread(digest_of, known.file.stamps)
        if known.worker is not None:
            known.worker.learn_digest(known.digest)
    except ModelFileInvalid as error:
        log.error("the digest of model %s cannot be computed: %s", known.name, error)
    finally:
        known.digest_known.set()


def _log_ready(known: KnownModel, sizes: ResolvedLimits) -> None:
    ready = known.worker.ready if known.worker is not None else None
    if ready is None or known.front is None:
        return
    turn_format = known.front.turn_format
    warm_up = ready.warm_up
    for device, size in ready.device_bytes.items():
        log.info("model %s: %d MiB on %s", known.name, size >> 20, device)
    if not known.file.generates:
        log.info(
            "model %s (%s): ready in %.1f s, inputs up to %d tokens, %d compute thread(s): %s",
            known.name,
            known.file.model_class.value,
            ready.load_s,
            ready.slot_tokens,
            warm_up.threads,
            warm_up.reason,
        )
        return
    log.info("model %s: %s", known.name, sizes.reason)
    log.info(
        "model %s: ready in %.1f s, %d slots of %d tokens, %d compute thread(s): %s",
        known.name,
        ready.load_s,
        ready.slots,
        ready.slot_tokens,
        warm_up.threads,
        warm_up.reason,
    )
    log.info(
        "model %s: tool calls as %s, thinking as %s",
        known.name,
        turn_format.tool_calls,
        turn_format.reasoning,
    )
