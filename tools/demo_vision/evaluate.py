"""Asks the demo model about held-out pictures in llama.cpp and marks the answers.

`python -m tools.demo_vision.evaluate PROJECTOR.gguf [--items 120] [--wrong 3]`, with the Python of
`.venv`. Pictures go through libmtmd, answers are decoded greedily; only an equal answer is right.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from contextlib import closing
from pathlib import Path

import llama_cpp
from llama_cpp import mtmd_cpp as mtmd

from tools.demo_vision.examination import Marks, items
from tools.demo_vision.pictures import Picture

MAX_TOKENS = 40
MARKER = "<__media__>"


def _drop(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Drop a line of llama.cpp's log."""


_ignore = llama_cpp.llama_log_callback(_drop)


class Seer:
    """The text model with a projector in front of it."""

    def __init__(self, model: Path, projector: Path) -> None:
        self.llama = llama_cpp.Llama(
            str(model), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False
        )
        parameters = mtmd.mtmd_context_params_default()
        parameters.use_gpu = False
        parameters.n_threads = 1
        parameters.print_timings = False
        mtmd.mtmd_log_set(_ignore, None)
        mtmd.mtmd_helper_log_set(_ignore, None)
        loaded = self.llama.model
        opened = mtmd.mtmd_init_from_file(str(projector).encode(), loaded, parameters)
        if not opened:
            raise ValueError(f"{projector} is no projector for {model}")
        self.context = opened

    def close(self) -> None:
        """Free both."""
        mtmd.mtmd_free(self.context)
        self.llama.close()

    def answer(self, picture: Picture, question: str) -> str:
        """Greedy answer to a question about the picture, which comes first in the message."""
        self._prefill(picture, f"{MARKER}\n{question}")
        tokens: list[int] = []
        while len(tokens) < MAX_TOKENS:
            token = self._best()
            if token == self.llama.token_eos():
                break
            tokens.append(token)
            batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1)
            if llama_cpp.llama_decode(self.llama.ctx, batch):
                raise RuntimeError("the answer could not be decoded")
        return self.llama.detokenize(tokens).decode(errors="replace")

    def _prefill(self, picture: Picture, content: str) -> None:
        text = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n".encode()
        pixels = picture.tobytes()
        data = (ctypes.c_uint8 * len(pixels)).from_buffer_copy(pixels)
        bitmap = mtmd.mtmd_bitmap_init(picture.shape[1], picture.shape[0], data)
        chunks = mtmd.mtmd_input_chunks_init()
        past = llama_cpp.llama_pos(0)
        given = mtmd.mtmd_input_text(text, len(text), False, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.llama.ctx), True)
        try:
            failed = mtmd.mtmd_tokenize(self.context, chunks, ctypes.byref(given), bitmaps, 1)
            failed = failed or mtmd.mtmd_helper_eval_chunks(
                self.context, self.llama.ctx, chunks, 0, 0, 512, True, ctypes.byref(past)
            )
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)
        if failed:
            raise RuntimeError(f"the picture could not be decoded: {failed}")

    def _best(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.llama.ctx, -1)
        return max(range(self.llama.n_vocab()), key=logits.__getitem__)


def examine(model: Path, projector: Path, count: int, wrong: int = 0) -> Marks:
    """Marks by skill, as `kind/skill` where several kinds of scene ask for it."""
    marks: Marks = {}
    with closing(Seer(model, projector)) as seer:
        for shown, picture, question in items(count):
            said = seer.answer(picture, question.text)
            skill = f"{shown.kind}/{question.skill}"
            right = said == question.answer
            marks[skill] = marks.get(skill, "") + str(int(right))
            if not right and marks[skill].count("0") <= wrong:
                print(f"{skill}: {question.text} {said!r} is not {question.answer!r}")
    return marks


def main() -> int:
    """Parse the command line, ask everything and print the scores."""
    root = Path(__file__).resolve().parents[2] / "inference_svc" / "models" / "bundled"
    parser = argparse.ArgumentParser(description="Examine a projector for the demo model.")
    parser.add_argument("projector", type=Path)
    parser.add_argument("--model", type=Path, default=root / "demo-chat-q8_0.gguf")
    parser.add_argument("--items", type=int, default=120, help="pictures for each skill")
    parser.add_argument("--wrong", type=int, default=0, help="wrong answers to show for each skill")
    parser.add_argument("--out", type=Path, help="JSON file to write the marks to")
    options = parser.parse_args()
    marks = examine(options.model, options.projector, options.items, options.wrong)
    for skill, each in marks.items():
        print(f"{skill:20} {100 * each.count('1') / len(each):5.1f}")
    if options.out:
        options.out.write_text(json.dumps(marks, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
