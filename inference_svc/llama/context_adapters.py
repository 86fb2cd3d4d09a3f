"""LoRA adapters of a llama.cpp context.

Adapter files must have been validated by `model_files/adapter_file.py`: llama.cpp aborts the
process on metadata of a wrong type.
"""

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp

from inference_svc.engine.backend import AdapterLoadError
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack


class LlamaAdapters:
    """The LoRA adapters of a context by digest. Only the step thread may use it."""

    def __init__(self, model: Any, context: Any) -> None:
        self._model = model
        self._context = context
        self._adapters: dict[str, Any] = {}
        self._stack = NO_ADAPTERS

    def load(self, digest: str, path: Path) -> None:
        """Load an adapter file. Raises `AdapterLoadError`."""
        adapter = llama_cpp.llama_adapter_lora_init(self._model, str(path).encode())
        if not adapter:  # a null pointer, which llama.cpp would dereference
            raise AdapterLoadError("llama.cpp cannot load the adapter; see its log messages")
        self._adapters[digest] = adapter

    def unload(self, digest: str) -> None:
        """Free an adapter, after removing it from the context."""
        if any(applied.digest == digest for applied in self._stack):
            self.apply(NO_ADAPTERS)
        llama_cpp.llama_adapter_lora_free(self._adapters.pop(digest))

    def apply(self, stack: AdapterStack) -> None:
        """Use a stack from the next decode on. A changed stack makes llama.cpp rebuild its
        graph."""
        if stack == self._stack:
            return
        adapters: Any = (llama_cpp.llama_adapter_lora_p_ctypes * len(stack))(
            *(self._adapters[applied.digest] for applied in stack)
        )
        scales: Any = (ctypes.c_float * len(stack))(*(applied.scale for applied in stack))
        llama_cpp.llama_set_adapters_lora(self._context, adapters, len(stack), scales)
        self._stack = stack

    def close(self) -> None:
        """Free all adapters."""
        self.apply(NO_ADAPTERS)
        for digest in list(self._adapters):
            self.unload(digest)
