"""The LoRA adapters of one model in llama.cpp, and which of them its context computes with.

A file that reaches this module has been checked (`model_files/adapter_file`): llama.cpp aborts on
metadata of the wrong type, and computes with shapes that it does not compare.
"""

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp

from inference_svc.engine.backend import AdapterLoadError
from inference_svc.engine.request import BASE, AdapterStack


class LlamaAdapters:
    """The adapters by digest. Only the step thread may use it."""

    def __init__(self, model: Any, context: Any) -> None:
        self._model = model
        self._context = context
        self._adapters: dict[str, Any] = {}
        self._stack = BASE

    def load(self, digest: str, path: Path) -> None:
        """Read a file. Raises `AdapterLoadError`."""
        adapter = llama_cpp.llama_adapter_lora_init(self._model, str(path).encode())
        if not adapter:  # a pointer to nothing, which llama.cpp would follow
            raise AdapterLoadError("llama.cpp cannot load it; its log says why")
        self._adapters[digest] = adapter

    def unload(self, digest: str) -> None:
        """Free an adapter; the context must not keep a pointer to it."""
        if any(applied.digest == digest for applied in self._stack):
            self.use(BASE)
        llama_cpp.llama_adapter_lora_free(self._adapters.pop(digest))

    def use(self, stack: AdapterStack) -> None:
        """Compute with a stack from the next decode on; the graph is built anew where it differs
        from the one in use."""
        if stack == self._stack:
            return
        adapters: Any = (llama_cpp.llama_adapter_lora_p_ctypes * len(stack))(
            *(self._adapters[applied.digest] for applied in stack)
        )
        scales: Any = (ctypes.c_float * len(stack))(*(applied.scale for applied in stack))
        llama_cpp.llama_set_adapters_lora(self._context, adapters, len(stack), scales)
        self._stack = stack

    def close(self) -> None:
        """Free all of them; the context computes nothing afterwards."""
        self.use(BASE)
        for digest in list(self._adapters):
            self.unload(digest)
