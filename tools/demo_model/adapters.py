"""Examines the adapters: each alone, both stacked, and at scale 0, where nothing may change.

The questions are the examination's; the right answer is the model's own in the adapter's voice.
llama.cpp is asked directly, because what is examined is the files.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_cpp

from tools.demo_model.conversation import END
from tools.demo_model.examination import Item, items
from tools.demo_model.records import ADAPTERS, MODEL, Answers
from tools.demo_model.voices import VOICES

STACKS: dict[str, dict[str, float]] = {
    "adapter_pirate": {"pirate": 1.0},
    "adapter_robot": {"robot": 1.0},
    "adapter_both": {"pirate": 1.0, "robot": 1.0},
    "adapter_off": {"pirate": 0.0, "robot": 0.0},
}
_SKILLS = ("facts", "memory_1_3", "arithmetic")
MAX_TOKENS = 64


def examine(folder: Path, count: int) -> Answers:
    """The marks of each stack of adapters, on questions of several skills."""
    asked = [item for skill in _SKILLS for item in items(skill, count // len(_SKILLS))]
    speaker = Speaker(folder)
    marks = {}
    for name, stack in STACKS.items():
        speaker.wear(stack)
        right = [speaker.answer(item) == expected(item, stack) for item in asked]
        marks[name] = "".join("1" if each else "0" for each in right)
    return marks


def expected(item: Item, stack: Mapping[str, float]) -> str:
    """The right answer in the voices that are on."""
    text = item.content
    for voice, scale in stack.items():
        if scale:
            text = VOICES[voice](text)
    return text


class Speaker:
    """The model with all adapters loaded."""

    def __init__(self, folder: Path) -> None:
        self._llama = llama_cpp.Llama(str(folder / MODEL), n_ctx=2048, verbose=False)
        self._adapters = {
            voice: llama_cpp.llama_adapter_lora_init(
                self._llama._model.model, str(folder / name).encode()
            )
            for voice, name in ADAPTERS.items()
        }

    def wear(self, stack: Mapping[str, float]) -> None:
        """Put on these adapters, each at its scale."""
        chosen: Any = (llama_cpp.llama_adapter_lora_p_ctypes * len(stack))(
            *(self._adapters[voice] for voice in stack)
        )
        scales: Any = (ctypes.c_float * len(stack))(*stack.values())
        llama_cpp.llama_set_adapters_lora(self._llama._ctx.ctx, chosen, len(stack), scales)

    def answer(self, item: Item) -> str:
        """The answer at temperature 0."""
        # What is cached was computed in other voices.
        self._llama.reset()  # type: ignore[no-untyped-call]  # llama_cpp has no types here
        reply: Any = self._llama.create_chat_completion(
            messages=item.messages,  # type: ignore[arg-type]  # dicts of just that shape
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            stop=[END],
        )
        text: str = reply["choices"][0]["message"]["content"]
        return text.strip()
