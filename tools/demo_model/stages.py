"""Stages that run in `.venv-demo-model` because they need torch or tokenizers.

`python -m tools.demo_model.stages STAGE`, where STAGE is corpus, train, draft, adapter,
export, export-adapter, export-foreign or logits; `tools.demo_model` calls them in order.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.demo_model import checkpoint, export, training
from tools.demo_model.corpus import corpus_plan, write_corpus, write_tokenizer
from tools.demo_model.network import Network, Shape
from tools.demo_model.probes import probes
from tools.demo_model.rows import Corpus
from tools.demo_model.tokenizer import load_tokenizer

DRAFT = Shape(d_model=128, num_layers=2, num_heads=2, num_kv_heads=1, d_ff=256)
"""A step takes a quarter of the demo model's. With one layer it could not copy names."""


def main() -> None:
    """Parse the command line and run one stage."""
    parser = argparse.ArgumentParser(description="Train and export the demo models.")
    stages = parser.add_subparsers(dest="stage", required=True)
    corpus = stages.add_parser("corpus", help="train the tokenizer and write a corpus")
    corpus.add_argument("--name", required=True, help="model, draft or a voice")
    corpus.add_argument("--out", type=Path, required=True, help="folder of both")
    corpus.add_argument("--tokens", type=int, required=True)
    corpus.set_defaults(run=write_named_corpus)
    for name, shape, step in (("train", Shape(), 8192), ("draft", DRAFT, 4096)):
        model = stages.add_parser(name, help=f"train a model of width {shape.d_model}")
        _training_options(model)
        model.set_defaults(base=None, shape=shape, tokens_per_step=step)
    adapter = stages.add_parser("adapter", help="train a LoRA")
    _training_options(adapter)
    adapter.add_argument("--base", type=Path, required=True, help="the model's checkpoint")
    adapter.set_defaults(shape=Shape(), tokens_per_step=8192)
    _export_options(stages)
    logits = stages.add_parser("logits", help="save scores for tools.demo_model.compare")
    logits.add_argument("--checkpoint", type=Path, required=True)
    logits.add_argument("--corpus", type=Path, required=True, help="where to take prompts from")
    logits.add_argument("--tokenizer", type=Path, required=True, help="folder of tokenizer.json")
    logits.add_argument("--out", type=Path, required=True, help=".npz to write")
    logits.set_defaults(run=save_logits)
    options = parser.parse_args()
    options.run(options)


def _training_options(stage: argparse.ArgumentParser) -> None:
    stage.add_argument("--corpus", type=Path, required=True, help="folder with corpus.json")
    stage.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    stage.add_argument("--log", type=Path, required=True, help="file to append progress to")
    stage.add_argument("--quick", action="store_true", help="do not compile")
    stage.set_defaults(run=train)


def _export_options(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    model = stages.add_parser("export", help="write a model as GGUF")
    model.add_argument("--checkpoint", type=Path, required=True)
    model.add_argument("--tokenizer", type=Path, required=True, help="folder of tokenizer.json")
    model.add_argument("--template", type=Path, required=True, help="the chat template")
    model.add_argument("--out-f16", type=Path)
    model.add_argument("--out-q8", type=Path)
    model.set_defaults(run=export_model)
    adapter = stages.add_parser("export-adapter", help="write a LoRA as GGUF")
    adapter.add_argument("--checkpoint", type=Path, required=True)
    adapter.add_argument("--out", type=Path, required=True)
    adapter.set_defaults(run=lambda o: export.export_adapter(o.checkpoint, o.out, _about(o)))
    foreign = stages.add_parser("export-foreign", help="write a LoRA for another base")
    foreign.add_argument("--out", type=Path, required=True)
    foreign.set_defaults(run=lambda o: export.export_foreign_adapter(o.out, _about(o)))
    for stage in (model, adapter, foreign):
        stage.add_argument("--name", required=True)
        stage.add_argument("--description", required=True)
        stage.add_argument("--author", default="The Corral authors")
        stage.add_argument("--licence", default="apache-2.0")


def _about(options: argparse.Namespace) -> export.About:
    return export.About(options.name, options.description, options.author, options.licence)


def write_named_corpus(options: argparse.Namespace) -> None:
    """Run the stage `corpus`."""
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = options.out / "tokenizer.json"
    if not tokenizer.exists():
        write_tokenizer(tokenizer)
    plan = corpus_plan(options.name, options.tokens)
    write_corpus(options.out / options.name, tokenizer, plan)


def train(options: argparse.Namespace) -> None:
    """Run the stage `train`, `draft` or `adapter`."""
    settings = training.Settings(
        options.corpus,
        options.out,
        options.log,
        shape=options.shape,
        base=options.base,
        tokens_per_step=options.tokens_per_step,
        compiled=not options.quick,
    )
    training.train(settings)


def export_model(options: argparse.Namespace) -> None:
    """Run the stage `export`."""
    # The newline at the end of the file is not part of the prompt.
    template = options.template.read_text().removesuffix("\n")
    for file_type, out in (("F16", options.out_f16), ("Q8_0", options.out_q8)):
        if out is not None:
            export.export_model(
                options.checkpoint, options.tokenizer, template, out, file_type, _about(options)
            )


def save_logits(options: argparse.Namespace) -> None:
    """Run the stage `logits`: save f32 logits of the first row of every length in the corpus.

    Also saves the token ids of the probes, to compare the tokenizers.
    """
    saved = checkpoint.load(options.checkpoint)
    network = Network(saved.shape, "cpu", torch.float32, compiled=False)
    corpus = Corpus(options.corpus)
    texts = probes()
    tokenizer = load_tokenizer(options.tokenizer / "tokenizer.json")
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    arrays: dict[str, Any] = {"probes": np.array(json.dumps({"texts": texts, "ids": ids}))}
    with torch.no_grad():
        for length in corpus.lengths:
            tokens = corpus.first_row(length)[: saved.shape.context - 1]
            arrays[f"tokens{length}"] = tokens
            arrays[f"logits{length}"] = network.logits(
                saved.weights, torch.from_numpy(tokens)[None]
            )[0].numpy()
    np.savez(options.out, **arrays)


if __name__ == "__main__":
    main()
