"""The engine's backend on llama.cpp: decode calls of tokens or vectors, samplers and slots."""

import ctypes
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from inference_svc.engine.backend import (
    DecodeError,
    EncoderInput,
    SampledToken,
    SampleFailure,
    SampleTask,
    ScoreTask,
)
from inference_svc.engine.batch import NativeLimits, Row, TokenBatch
from inference_svc.engine.constraint import Constraint, Guide
from inference_svc.engine.events import ChosenLogprob
from inference_svc.engine.kv_cache.copies import CellRefCounts
from inference_svc.engine.media import Vectors
from inference_svc.engine.request import AdapterStack, SequenceRequest
from inference_svc.llama.attention import architecture_of, cell_format, set_attention
from inference_svc.llama.context_adapters import LlamaAdapters
from inference_svc.llama.grid_positions import (
    SECTIONS,
    Chunks,
    GridPositions,
    append_chunks,
    split_chunks,
    tail_bytes,
)
from inference_svc.llama.native_batch import NativeBatch
from inference_svc.llama.sampling.batch_sampler import RowSampler
from inference_svc.llama.sampling.candidate_selection import LARGE_VOCABULARY
from inference_svc.llama.sampling.candidates import Logits
from inference_svc.llama.sampling.chain import SamplerChain
from inference_svc.llama.sampling.native_filters import ModelSizes
from inference_svc.llama.sequence_memory import SequenceMemory
from inference_svc.llama.state_convert import StateMismatch, convert_state
from inference_svc.llama.token_vectors import TokenVectors
from inference_svc.llama.vocabulary import Vocabulary, grammar_tokenizer
from inference_svc.llama.weights import ModelLoadError, load_model
from inference_svc.models.placement import Attention, Placement
from inference_svc.structured_output.matcher import GrammarGuides

log = logging.getLogger(__name__)
_GRID_ROPE_TYPES = (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE)


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """How to load a model. `context_tokens` is per slot; `threads` are for decode calls,
    `sampling_threads` for sampling; `draft_tokens` limits all drafts of a step together.
    `shared_cells` is the size of a KV cache that all slots share (the unified layout). All logits
    are multiplied by `logit_scale`."""

    path: Path
    slots: int
    context_tokens: int
    batch_tokens: int
    ubatch_tokens: int
    threads: int
    sampling_threads: int
    draft_tokens: int = 0
    shared_cells: int | None = None
    placement: Placement = field(default_factory=Placement)
    attention: Attention = field(default_factory=Attention)
    logit_scale: float = 1.0

    @property
    def output_rows(self) -> int:
        """Maximum rows of logits of one decode: one per slot and one per drafted token."""
        return self.slots + self.draft_tokens


class LlamaBackend:
    """A loaded model. Only the thread that created it may use it."""

    def __init__(
        self,
        settings: BackendSettings,
        on_progress: Callable[[float], None] = lambda _: None,
        large_vocabulary: int = LARGE_VOCABULARY,
    ) -> None:
        """Load weights and create the context; `on_progress` as in `load_model`. Candidates are
        preselected before sampling from `large_vocabulary` tokens on. Raises `ModelLoadError`."""
        self._model = load_model(settings.path, settings.placement, on_progress)
        self.cell_format = cell_format(settings.attention)
        self._context = self._create_context(settings)
        self._memory = SequenceMemory(self._model, self._context, self.architecture)
        self.can_trim = self._memory.can_trim
        self._logit_scale = settings.logit_scale
        self._adapters = LlamaAdapters(self._model, self._context)
        self._token_vectors: TokenVectors | None = None
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocabulary = Vocabulary.from_model(self._model)
        has_grids = llama_cpp.llama_model_rope_type(self._model) in _GRID_ROPE_TYPES
        self._grids = GridPositions(settings.slots) if has_grids else None
        self._batch = NativeBatch(settings.batch_tokens, SECTIONS if has_grids else 1)
        self._n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._output_rows: list[int] = []
        self._end_tokens = np.array(sorted(self.vocabulary.end_tokens), np.int32)
        self._row_type = ctypes.c_float * self._n_vocab
        self._row_sampler = RowSampler(self._n_vocab, settings.sampling_threads)
        self._guides = GrammarGuides(lambda: grammar_tokenizer(self.vocabulary), self._n_vocab)
        self.limits = NativeLimits(
            batch_tokens=settings.batch_tokens,
            output_rows=settings.output_rows,
            slots=settings.slots,
            slot_tokens=self._slot_tokens(settings),
            vocabulary_size=self._n_vocab,
            ubatch_tokens=settings.ubatch_tokens,
            cells=settings.shared_cells,
            source_tokens=settings.ubatch_tokens if _has_source(self._model) else None,
            vector_width=llama_cpp.llama_model_n_embd_inp(self._model),
        )
        if self.limits.source_tokens is not None:
            # A decode before the first encode aborts the process.
            self.encode([EncoderInput(0, (0,))])
        self._sizes = ModelSizes(
            self._vocab,
            self._n_vocab,
            self.limits.slot_tokens,
            _suppressed_tokens(self._vocab),
            large_vocabulary,
        )
        self._num_streams = settings.slots if settings.shared_cells is None else 1
        self._ref_counts = CellRefCounts(settings.slots)

    @property
    def model(self) -> Any:
        """The loaded weights; further contexts may share them."""
        return self._model

    def _slot_tokens(self, settings: BackendSettings) -> int:
        if settings.shared_cells is not None:
            return min(settings.context_tokens, settings.shared_cells)
        return int(llama_cpp.llama_n_ctx_seq(self._context))

    def _create_context(self, settings: BackendSettings) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings.shared_cells or settings.slots * settings.context_tokens
        params.n_seq_max = settings.slots
        params.n_batch = settings.batch_tokens
        params.n_ubatch = settings.ubatch_tokens
        # The default, n_batch, reserves logits for every token of a batch: hundreds of megabytes
        # with a large vocabulary.
        params.n_outputs_max = settings.output_rows
        params.n_threads = params.n_threads_batch = settings.threads
        params.kv_unified = settings.shared_cells is not None
        params.no_perf = True
        set_attention(params, self._model, settings.attention)
        context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            llama_cpp.llama_model_free(self._model)
            raise ModelLoadError(
                f"not enough memory for {settings.slots} slots of {settings.context_tokens} tokens"
            )
        return context

    def close(self) -> None:
        """Free all native memory."""
        self.use_token_vectors(None)
        self._row_sampler.close()
        self._guides.close()
        self._adapters.close()
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def use_token_vectors(self, vectors: TokenVectors | None) -> None:
        """Allow texts in rows of vectors, which get these vectors of their tokens; None forbids.
        This changes `limits`, so it must be called before the engine is made."""
        if self._token_vectors is not None and vectors is None:
            self._token_vectors.close()
        self._token_vectors = vectors
        self.limits = replace(self.limits, mixes_vectors=vectors is not None)

    def set_threads(self, threads: int) -> None:
        """Set the number of threads from the next decode on."""
        llama_cpp.llama_set_n_threads(self._context, threads, threads)

    def load_adapter(self, digest: str, path: Path) -> None:
        """Load an adapter. Raises `AdapterLoadError`."""
        self._adapters.load(digest, path)

    def unload_adapter(self, digest: str) -> None:
        """Free an adapter."""
        self._adapters.unload(digest)

    def use_adapters(self, stack: AdapterStack) -> None:
        """Apply these adapters from the next decode on."""
        self._adapters.apply(stack)

    def decode(self, batch: TokenBatch) -> None:
        """Compute a batch. Raises `DecodeError`.

        Waits for the GPU: llama.cpp only queues the work, so a prompt chunk without sampled rows
        would appear to take no time.
        """
        if batch.vectors is not None:
            self._decode_vectors(batch, batch.vectors)
            return
        if self._grids is not None:
            batch = replace(batch, positions=self._grids.of_tokens(batch))
        self._output_rows = np.flatnonzero(batch.outputs).tolist()
        self._decode(self._batch.fill(batch))

    def _decode(self, native: Any) -> None:
        code = llama_cpp.llama_decode(self._context, native)
        if code != 0:
            raise DecodeError(code)
        llama_cpp.llama_synchronize(self._context)

    def _decode_vectors(self, batch: TokenBatch, vectors: Vectors) -> None:
        self._output_rows = np.flatnonzero(batch.outputs).tolist()
        if self._token_vectors is not None and (is_text := batch.tokens >= 0).any():
            vectors[is_text] = self._token_vectors.of(batch.tokens[is_text])
        positions = batch.positions if self._grids is None else self._grids.of_vectors(batch)
        native = self._batch.fill_vectors(batch, vectors, positions)
        llama_cpp.llama_set_causal_attn(self._context, batch.is_causal)
        try:
            self._decode(native)
        except DecodeError:
            self._drop_grids(batch)
            raise
        finally:
            llama_cpp.llama_set_causal_attn(self._context, True)
        if self._grids is not None:
            self._grids.add(batch)

    def _drop_grids(self, batch: TokenBatch) -> None:
        """After a failed decode, remove the cells of its pictures, or all if the model cannot:
        since they all have one position, those of this batch cannot be distinguished from earlier
        ones."""
        if self._grids is None:
            return
        for row in batch.vector_rows:
            has_grid = any(span.grid is not None for span in row.spans)
            if has_grid and not self.trim(row.slot, row.spans[0].start):
                self.trim(row.slot, 0)

    def encode(self, sources: Sequence[EncoderInput]) -> None:
        """Compute sources in one call. Raises `DecodeError`.

        Their positions must follow the cells of the slot, although those belong to the decoder.
        Only differences between positions matter in the encoder.
        """
        rows = [
            Row(source.slot, self.slot_length(source.slot), source.tokens, output=False)
            for source in sources
        ]
        batch = TokenBatch.of(rows)
        batch.outputs[:] = 1
        code = llama_cpp.llama_encode(self._context, self._batch.fill(batch))
        if code != 0:
            raise DecodeError(code)

    def sample(self, tasks: Sequence[SampleTask]) -> list[SampledToken | SampleFailure]:
        """Sample a token for each task."""
        # Rows are fetched before other threads start: llama.cpp reorders rows on each access.
        return self._row_sampler.sample(tasks, [self.logits(task.row) for task in tasks])

    def score(self, tasks: Sequence[ScoreTask]) -> list[ChosenLogprob]:
        """Compute the log probabilities for each task."""
        rows = [self.logits(task.row) for task in tasks]
        return self._row_sampler.score(
            tasks, rows, lambda token: self.vocabulary.piece(token, special=True)
        )

    def logits(self, output: int) -> Logits:
        """The logits of an output of the last decode, in its order. Valid until the next one."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, self._output_rows[output])
        # Ten times as fast as np.ctypeslib.as_array.
        buffer = self._row_type.from_address(ctypes.addressof(pointer.contents))
        row: Logits = np.frombuffer(buffer, np.float32)
        return row if self._logit_scale == 1 else row * self._logit_scale

    def likeliest_tokens(self, count: int) -> list[int]:
        """The likeliest next tokens of the first `count` outputs of the last decode."""
        return [int(self.logits(output).argmax()) for output in range(count)]

    def new_sampler(self, request: SequenceRequest) -> SamplerChain:
        """Create the sampler of a sequence; it has accepted the prompt."""
        return SamplerChain(
            request,
            self._sizes,
            self._end_tokens,
            lambda token: self.vocabulary.piece(token, special=True),
        )

    @property
    def architecture(self) -> str:
        """The model file's `general.architecture`."""
        return architecture_of(self._model)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Queue a copy of a whole stream (llama.cpp aborts on a partial one). In the unified layout
        let `target` share the first `tokens` cells."""
        if self._grids is not None:
            whole = self.limits.cells is None
            chunks = self._chunks(source) if whole else self._grids.within(source, tokens)
            self._grids.put(target, chunks)
        if self.limits.cells is None:
            self._memory.copy(source, target, -1)
            return
        self._memory.copy(source, target, self._position(source, tokens))
        self._ref_counts.share(source, target, tokens)

    @property
    def used_cells(self) -> int:
        """Cells in use by all slots; shared cells count once."""
        return self._ref_counts.used(self._lengths)

    def freed_by(self, slot: int) -> int:
        """Number of cells that emptying a slot would free."""
        return self._ref_counts.freed_by(slot, self._lengths)

    @property
    def _lengths(self) -> list[int]:
        return [self.slot_length(slot) for slot in range(self.limits.slots)]

    def state_bytes(self, slot: int) -> int:
        """Size of the state that `save` would return."""
        size = self._memory.state_bytes(slot)
        return size + (tail_bytes(self._chunks(slot)) if self._grids is not None else 0)

    def save(self, slot: int) -> bytearray:
        """Serialize the cells of a slot, for a context with any number of slots."""
        state = self._memory.save(slot)
        if self._grids is not None:
            append_chunks(state, self._chunks(slot))
        return state

    def _chunks(self, slot: int) -> Chunks:
        """The pictures in a slot, if they need fewer positions than cells."""
        return () if self._grids is None else self._grids.within(slot, self.slot_length(slot))

    def restore(self, slot: int, state: bytearray) -> bool:
        """Replace the cells of a slot with a saved state; False if it does not fit."""
        chunks: Chunks = ()
        if self._grids is not None:
            state, chunks = split_chunks(state)
        try:
            converted, size = convert_state(state, self._num_streams)
        except StateMismatch as problem:
            log.warning("cannot restore a saved state: %s", problem)
            return False
        self.trim(slot, 0)
        if not self._memory.restore(slot, converted, size):
            return False
        if self._grids is not None:
            self._grids.put(slot, chunks)
        return True

    def prepare_guides(self) -> None:
        """Load the grammar tokenizer now rather than with the first constrained request."""
        wait([self._guides.prepare()])

    def new_guide(self, constraint: Constraint) -> Guide:
        """Create the guide that enforces a constraint on a sequence."""
        return self._guides.new(constraint)

    def trim(self, slot: int, length: int) -> bool:
        """Remove all but the first `length` tokens of a slot; False if what is left would lack
        something that the next token depends on."""
        if self._grids is not None and self._grids.is_inside(slot, length):
            return False
        is_trimmed = self._memory.cut(slot, self._position(slot, length))
        if is_trimmed:
            self._cut(slot, length)
        return is_trimmed

    def can_trim_to(self, slot: int, length: int) -> bool:
        """Whether `trim` would return True, for a length that is not inside a picture."""
        return length == 0 or self._memory.can_cut(slot, self._position(slot, length))

    def min_restored(self, tokens: int) -> int:
        """The fewest tokens, besides none, to which a restored state of this many can be cut."""
        return self._memory.min_restored(tokens)

    def _position(self, slot: int, cell: int) -> int:
        """The position of a cell, or of the one after the last one."""
        return cell if self._grids is None else self._grids.position(slot, cell)

    def _cut(self, slot: int, length: int) -> None:
        """Record that a slot has `length` tokens at most."""
        if self._grids is not None:
            self._grids.cut(slot, length)
        if self.limits.cells is not None:
            self._ref_counts.cut(slot, length)

    def slot_length(self, slot: int) -> int:
        length = self._memory.last(slot) + 1
        return length if self._grids is None else self._grids.num_cells(slot, length)

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes of a token; empty for a control token unless `special`."""
        return self.vocabulary.piece(token, special=special)

    def is_eog(self, token: int) -> bool:
        """Whether a token ends the generation."""
        return token in self.vocabulary.end_tokens


def _has_source(model: Any) -> bool:
    return bool(
        llama_cpp.llama_model_has_encoder(model) and llama_cpp.llama_model_has_decoder(model)
    )


def _suppressed_tokens(vocab: Any) -> tuple[int, ...]:
    """Tokens that the model file forbids."""
    count = ctypes.c_int32()
    tokens = llama_cpp.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(count))
    return tuple(tokens[: count.value])
