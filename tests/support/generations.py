"""Chat and Generate without processes: the vocabulary and template of the demo model, its grammars
and limits, and doubles of the engine and the encoder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import grpc
from corral.inference.v1 import inference_service_pb2 as pb
from prometheus_client import CollectorRegistry

from inference_svc.chat.conversation import ConversationLimits
from inference_svc.chat.templates import FALLBACK_FORMAT, ChatTemplates, ModelTemplate
from inference_svc.chat.tokenization import PromptTokenizer
from inference_svc.engine.events import Finished, FinishReason, Started, Timings
from inference_svc.engine.media import MediaKind, VectorFile
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.messages import ModelReady
from inference_svc.engine_client.output_stream import OutputStream, ReaderLimits
from inference_svc.limits.limiter import Admit, LimitReservation, Need, admit_all
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.llama.warmup import WarmUp
from inference_svc.media.document import DocumentReader
from inference_svc.media.fetcher import MediaFetcher
from inference_svc.media.model import EncodedMedia, VectorChunk
from inference_svc.media.processor import CheckRequest, MediaInput, MediaLease, MediaProcessor
from inference_svc.model_pool.catalog import ModelProcessor
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.rpc.embeddings import EmbeddingService
from inference_svc.rpc.generation import GenerationService
from inference_svc.rpc.inference_servicer import InferenceServicer
from inference_svc.rpc.media_inputs import MediaInputs
from inference_svc.rpc.prefix_policy import PrefixGroups
from inference_svc.sessions import SessionLog
from inference_svc.structured_output.compiler import GrammarCompiler
from inference_svc.usage import UsageKey, discard_usage
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.metrics import EngineMetrics
from svc_kit.queue_share import QueueEntry
from svc_kit.sandbox.jobs import Job
from tests.support.pooled import PoolHarness
from tests.support.sandbox_jobs import InlineJobs

SLOT_TOKENS: Final = 512
PICTURE_TOKENS: Final = 400
CALLER: Final = Principal(project="red", scopes=frozenset({"inference"}), key_id="key_1")
NO_CONTEXT: Final = cast("grpc.aio.ServicerContext[object, object]", None)


class StepFailed(Exception):
    """A step failed, because the test wanted it to."""


class Steps:
    """The names of the steps that calls have taken; the one with the index `failing` fails."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failing: int | None = None

    def begin(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self.failing:
            raise StepFailed(name)


class StepJobs(InlineJobs):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def run(self, job: Job, payload: Any, *, key: str = "") -> Any:
        self._steps.begin(job.function)
        return await super().run(job, payload, key=key)


class StepVocabulary:
    """A vocabulary; each text that is tokenized and each token that is detokenized is a step."""

    def __init__(self, vocabulary: Vocabulary, steps: Steps) -> None:
        self._vocabulary = vocabulary
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vocabulary, name)

    def tokenize(self, text: str, **options: Any) -> list[int]:
        self._steps.begin("tokenize")
        return self._vocabulary.tokenize(text, **options)

    def piece(self, token: int, special: bool = False) -> bytes:
        self._steps.begin("piece")
        return self._vocabulary.piece(token, special)


class StepEngine:
    """Ends each choice at once. `submitted` are all requests. `ready` may be replaced."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.ready = ModelReady("demo", 4, SLOT_TOKENS, 64, WarmUp(1, "", {}), 1.0)
        self.submitted: list[SequenceRequest] = []

    def check_open(self) -> None:
        """Accept."""

    def check_room(self, new: QueueEntry, num_choices: int) -> None:
        self._steps.begin("check_room")

    def submit(
        self, requests: Sequence[SequenceRequest], label: str, adapters: object
    ) -> tuple[OutputStream, int]:
        self._steps.begin("submit")
        self.submitted += requests
        stream = OutputStream(
            "req_1",
            tuple(range(len(requests))),
            ReaderLimits(1000, 60.0),
            set_paused=lambda _: None,
            cancel=lambda: None,
        )
        for choice in range(len(requests)):
            stream.deliver(Started(choice, choice, 0))
            timings = Timings(0.0, 0.0, 0.0)
            stream.deliver(Finished(choice, FinishReason.STOP, None, 2, 1, timings))
        return stream, 0


class StepEncoder:
    """Encodes each picture to `PICTURE_TOKENS` vectors, of which `num_held` are in use."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.num_encoded = 0
        self.num_held = 0

    def check(self, inputs: Sequence[MediaInput]) -> None:
        """Accept."""

    async def encode(
        self, inputs: Sequence[MediaInput], *, owner: str, project: str, check_request: CheckRequest
    ) -> MediaLease:
        await check_request()
        self._steps.begin("encode")
        held = [PICTURE_TOKENS] * len(inputs)
        self.num_encoded += len(held)
        self.num_held += sum(held)

        def release() -> None:
            while held:
                self.num_held -= held.pop()

        chunk = VectorChunk(PICTURE_TOKENS, PICTURE_TOKENS, b"digest", VectorFile(Path("v"), 0))
        return MediaLease((EncodedMedia(MediaKind.IMAGE, (chunk,)),) * len(held), release)


class Generations:
    """An inference service with one model, "demo"."""

    def __init__(self, vocabulary: Vocabulary, admit: Admit = admit_all) -> None:
        self.steps = Steps()
        self.engine = StepEngine(self.steps)
        self.encoder = StepEncoder(self.steps)
        self.admissions: list[LimitReservation] = []
        self.admitted: list[tuple[Need, bool]] = []
        """What was asked of the limits, and whether it was a check."""
        self._admit_real = admit
        self._vocabulary = cast(Vocabulary, StepVocabulary(vocabulary, self.steps))
        self._pooled = PoolHarness("demo")

    async def start(self) -> "Generations":
        await self._pooled.start()
        entry, vocabulary = self._pooled["demo"], self._vocabulary
        async with self._pooled.pool.use(entry):
            pass
        jobs = StepJobs(self.steps)
        entry.engine = cast(EngineClient, self.engine)
        entry.media = cast(MediaProcessor, self.encoder)
        entry.processor = ModelProcessor(
            entry.file,
            vocabulary,
            ModelTemplate.for_model(None, "", "", vocabulary.control_texts),
            FALLBACK_FORMAT,
            PromptTokenizer(vocabulary, jobs, BUNDLED_PATH, 1 << 20),
        )
        generating = GenerationService(
            self._pooled.pool,
            ChatTemplates(jobs),
            GrammarCompiler(jobs),
            ConversationLimits(),
            PrefixGroups({}),
            MediaInputs(cast(MediaFetcher, None), cast(DocumentReader, None)),
            self._admit,
        )
        embedding = cast(EmbeddingService, None)
        sessions = SessionLog(EngineMetrics(CollectorRegistry()).divergences)
        self.servicer = InferenceServicer(generating, embedding, discard_usage, sessions)
        return self

    async def _admit(
        self, key: UsageKey, need: Need, *, is_check: bool = False
    ) -> LimitReservation:
        self.steps.begin("admit")
        self.admitted.append((need, is_check))
        self.admissions.append(await self._admit_real(key, need, is_check=is_check))
        return self.admissions[-1]

    async def run(self, request: pb.ChatRequest | pb.GenerateRequest) -> list[Any]:
        """Return all responses."""
        set_principal(CALLER)
        if isinstance(request, pb.ChatRequest):
            return [each async for each in self.servicer.Chat(request, NO_CONTEXT)]
        return [each async for each in self.servicer.Generate(request, NO_CONTEXT)]

    def held(self) -> tuple[int, int, int]:
        """The uses of the model, reservations of limits, and vectors that calls have."""
        reservations = sum(len(admission._open) for admission in self.admissions)
        return (self._pooled["demo"].resident.num_uses, reservations, self.encoder.num_held)
