"""A second context on the weights of a model, for embeddings and rerank scores.

llama.cpp pools inside the graph, and the pooling type is fixed when the context is created.
"""

import ctypes
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import llama_cpp
import numpy as np

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import TokenBatch
from inference_svc.engine.embedding_request import EmbeddingLimits, Vector
from inference_svc.llama.attention import set_flash_attention_and_rope
from inference_svc.llama.engine_memory import EngineMemory
from inference_svc.llama.native_batch import NativeBatch
from inference_svc.llama.weights import ModelLoadError
from inference_svc.models.metadata import Pooling
from inference_svc.models.placement import Attention
from svc_kit.errors import ModelTooLarge

log = logging.getLogger(__name__)

_POOLING = {
    Pooling.MEAN: llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    Pooling.CLS: llama_cpp.LLAMA_POOLING_TYPE_CLS,
    Pooling.LAST: llama_cpp.LLAMA_POOLING_TYPE_LAST,
    Pooling.RANK: llama_cpp.LLAMA_POOLING_TYPE_RANK,
}
_SEQUENCES = 64
_RECURRENT_SEQUENCES = 8  # each has a whole recurrent state
_MAX_LOGIT_BYTES = 64 << 20  # per batch; allocated twice: in the compute buffer and as output
_MIN_BATCH_TOKENS = 32


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """How a model embeds. `input_tokens` limits one input, `pack_tokens` a batch of short inputs;
    `cell_bytes` is the size of a token in the KV cache."""

    name: str
    pooling: Pooling
    is_causal: bool
    input_tokens: int
    pack_tokens: int
    threads: int
    cell_bytes: int
    attention: Attention = field(default_factory=Attention)


class LlamaEmbedding:
    """The embedding context of one model, created on first use. Only the thread that created it may
    use it; the model must outlive it."""

    def __init__(
        self, model: Any, settings: EmbeddingSettings, memory: EngineMemory | None = None
    ) -> None:
        """`memory` limits the size of the context; None means the memory of the machine."""
        self._model = model
        self._engine_memory = memory or EngineMemory()
        self._settings = settings
        self._context: Any = None
        self._is_encoder = bool(llama_cpp.llama_model_has_encoder(model))
        self._batch: NativeBatch | None = None
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self.limits = _limits(model, settings, int(llama_cpp.llama_vocab_n_tokens(vocabulary)))

    def open(self) -> None:
        """Create the context if needed. Raises `ModelTooLarge` or `ModelLoadError`."""
        if self._context is not None:
            return
        self._check_memory()
        limits = self.limits
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = limits.cells
        params.n_batch = params.n_ubatch = limits.batch_tokens
        params.n_seq_max = limits.sequences
        params.n_threads = params.n_threads_batch = self._settings.threads
        params.embeddings = True
        params.pooling_type = _POOLING[self._settings.pooling]
        params.kv_unified = True  # so that a batch of many inputs is one ubatch
        params.no_perf = True
        set_flash_attention_and_rope(params, self._model, self._settings.attention)
        with self._engine_memory.tracking():
            context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            raise ModelLoadError(
                f"{self._settings.name}: cannot create a context for embeddings of "
                f"{limits.input_tokens} tokens"
            )
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._batch = NativeBatch(limits.batch_tokens)

    def _check_memory(self) -> None:
        limits = self.limits
        needed = limits.cells * self._settings.cell_bytes
        needed += (
            8 * limits.batch_tokens * limits.vocabulary_size if self._settings.is_causal else 0
        )
        layers = int(llama_cpp.llama_model_n_layer(self._model))
        available = self._engine_memory.available_bytes(layers)
        if needed > available:
            raise ModelTooLarge(
                model=self._settings.name, needed_bytes=needed, available_bytes=available
            )

    def close(self) -> None:
        """Free the context."""
        if self._context is not None:
            llama_cpp.llama_free(self._context)
            self._context = None

    def embed(self, batch: TokenBatch) -> Mapping[int, Vector]:
        """Compute the pooled vector of each slot in the batch. Raises `DecodeError` or
        `ModelTooLarge`."""
        try:
            self.open()
        except ModelLoadError as error:
            log.error("%s", error)
            raise DecodeError(-2) from error
        if self._batch is None:
            raise ValueError("the context is closed")
        compute = llama_cpp.llama_encode if self._is_encoder else llama_cpp.llama_decode
        code = compute(self._context, self._batch.fill(batch))
        if code != 0:
            raise DecodeError(code)
        return {slot: self._vector(slot) for slot in np.unique(batch.slots).tolist()}

    def _vector(self, slot: int) -> Vector:
        pointer = llama_cpp.llama_get_embeddings_seq(self._context, slot)
        if not pointer:
            raise DecodeError(-3)
        size = self.limits.vector_size
        data = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(data, shape=(size,)).copy()

    def clear_slot(self, slot: int) -> None:
        """Remove all tokens of a slot."""
        if self._context is not None and self._memory:
            llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)


def _limits(model: Any, settings: EmbeddingSettings, vocabulary_size: int) -> EmbeddingLimits:
    pooling = settings.pooling
    is_rank = pooling is Pooling.RANK
    recurrent = llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
    splits = settings.is_causal and pooling is not Pooling.CLS
    batch_tokens = max(settings.pack_tokens, 0 if splits else settings.input_tokens)
    if settings.is_causal:
        max_tokens = max(_MAX_LOGIT_BYTES // (4 * vocabulary_size), _MIN_BATCH_TOKENS)
        batch_tokens = min(batch_tokens, max_tokens) if splits else batch_tokens
    return EmbeddingLimits(
        batch_tokens=batch_tokens,
        input_tokens=settings.input_tokens,
        sequences=min(_RECURRENT_SEQUENCES if recurrent else _SEQUENCES, batch_tokens),
        cells=max(settings.input_tokens, batch_tokens),
        vector_size=int(
            llama_cpp.llama_model_n_cls_out(model)
            if is_rank
            else llama_cpp.llama_model_n_embd_out(model)
        ),
        vocabulary_size=vocabulary_size,
        splits=splits,
        averages=pooling is Pooling.MEAN,
    )
