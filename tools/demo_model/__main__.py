"""Build the bundled demo model from scratch: `make demo-model`, 90 minutes on two cores.

    corpus -> training -> two adapters -> draft model -> GGUF -> comparison -> examination

Every stage writes its result to the work folder. Corpora and trained weights are reused if they
exist, and an interrupted training run resumes from its last checkpoint. `--trial` runs 1 % of the
steps in a temporary folder to test the pipeline, and installs nothing. `--draft` trains and
installs the draft model only, which takes minutes.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.demo_model import adapters, card, evaluate
from tools.demo_model.conversation import TEMPLATE
from tools.demo_model.records import (
    ADAPTERS,
    DRAFT,
    FOREIGN_ADAPTER,
    MODEL,
    install,
    install_draft,
)
from tools.demo_model.voices import DESCRIPTIONS, VOICES

ROOT = Path(__file__).resolve().parents[2]
TORCH_PYTHON = ROOT / ".venv-demo-model" / "bin" / "python"
CORPORA = {"model": 55_000_000, **dict.fromkeys(VOICES, 1_000_000), "draft": 2_000_000}
"""Tokens of the corpora."""
ITEMS = 100
"""Number of questions for each skill."""
MAX_LOSS_RATIO = 0.75
"""A trial passes if its lowest loss is below this fraction of its first loss."""
UNQUANTIZED = "demo-chat-f16.gguf"
EQUAL_TOKENS = {UNQUANTIZED: 0.99, MODEL: 0.9}
"""Minimum share of positions at which llama.cpp and torch predict the same token."""
Flags = list[str | Path]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages and their work folder. `share` is the fraction of the full number of tokens."""

    work: Path
    share: float = 1.0
    quick: bool = False
    """Whether to skip `torch.compile`."""

    @property
    def log(self) -> Path:
        """Path of the training log."""
        return self.work / "training.txt"

    def run(self) -> None:
        """Run all stages up to the GGUF files. Raises CalledProcessError if a stage fails."""
        for name in CORPORA:
            self.write_corpus(name)
        self.train()
        self.export()
        self.make_draft()
        self.compare()

    def write_corpus(self, name: str) -> None:
        """Write a corpus, and train the tokenizer before the first one, unless it exists."""
        if (self.work / name / "corpus.json").exists():
            return
        size = str(int(CORPORA[name] * self.share))
        self.stage("corpus", "--name", name, "--out", self.work, "--tokens", size)

    def make_draft(self) -> None:
        """Train and export the draft model. Its tokenizer is that of the model: it is trained on
        the same text. Raises CalledProcessError if a stage fails."""
        self.write_corpus("draft")
        # Without --quick, compiling it takes longer than training it.
        log = self.work / "training-draft.txt"
        self._train("draft", "draft", self.work / "draft.pt", "--quick", log=log)
        about = ["--name", "demo-draft", "--description", "A draft model of demo-chat"]
        source: Flags = ["--checkpoint", self.work / "draft.pt", "--tokenizer", self.work]
        files: Flags = ["--template", TEMPLATE, "--out-q8", self.work / DRAFT]
        self.stage("export", *source, *files, *about)

    def train(self) -> None:
        """Train the model, then an adapter for each voice."""
        model = self.work / "model.pt"
        self._train("train", "model", model)
        for voice in VOICES:
            self._train("adapter", voice, self.work / f"{voice}.pt", "--base", model)

    def _train(
        self, stage: str, corpus: str, out: Path, *flags: str | Path, log: Path | None = None
    ) -> None:
        """Run one training stage, unless its result exists."""
        if out.exists():
            return
        files: Flags = ["--corpus", self.work / corpus, "--out", out, "--log", log or self.log]
        options = [*files, *flags]
        self.stage(stage, *options, *(["--quick"] if self.quick else []))

    def export(self) -> None:
        """Write all GGUF files."""
        about = ["--name", "demo-chat", "--description", "A tiny assistant for demos and tests"]
        source: Flags = ["--checkpoint", self.work / "model.pt", "--tokenizer", self.work]
        files: Flags = ["--out-f16", self.work / UNQUANTIZED, "--out-q8", self.work / MODEL]
        self.stage("export", *source, "--template", TEMPLATE, *files, *about)
        for voice, name in ADAPTERS.items():
            about = ["--name", f"demo-lora-{voice}", "--description", DESCRIPTIONS[voice]]
            source = ["--checkpoint", self.work / f"{voice}.pt", "--out", self.work / name]
            self.stage("export-adapter", *source, *about)
        about = ["--name", "foreign-lora", "--description", "For another base: to be refused"]
        self.stage("export-foreign", "--out", self.work / FOREIGN_ADAPTER, *about)

    def compare(self) -> None:
        """Compare the files in llama.cpp with the checkpoint in torch; record the differences."""
        logits = self.work / "logits.npz"
        flags: Flags = ["--checkpoint", self.work / "model.pt", "--corpus", self.work / "model"]
        self.stage("logits", *flags, "--tokenizer", self.work, "--out", logits)
        lines = []
        for name, at_least in EQUAL_TOKENS.items():
            compare: Flags = [sys.executable, "-m", "tools.demo_model.compare", logits]
            command = [*compare, self.work / name, "--at-least", str(at_least)]
            completed = subprocess.run(
                command, cwd=ROOT, check=True, capture_output=True, text=True
            )
            lines += [f"{name}: {line}" for line in completed.stdout.splitlines()]
        (self.work / "comparison.txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)

    def examine(self) -> None:
        """Record the scores of the model and of its adapters."""
        marked = evaluate.examine(self.work / MODEL, ITEMS)
        answers = evaluate.record(marked) | adapters.examine(self.work, ITEMS)
        (self.work / "scores.json").write_text(json.dumps(answers, indent=1) + "\n")

    def stage(self, name: str, *flags: str | Path) -> None:
        """Run a stage with the Python of `.venv-demo-model`."""
        print(f"--- {name}", flush=True)
        command: Flags = [TORCH_PYTHON, "-m", "tools.demo_model.stages", name, *flags]
        subprocess.run(command, cwd=ROOT, check=True)


def trial() -> int:
    """Run 1 % of the steps, up to GGUF files in llama.cpp. Returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(Path(folder), share=0.01, quick=True)
        pipeline.run()
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", pipeline.log.read_text())]
    if not losses:
        print("trial: nothing was trained: FAILED")
        return 1
    learned = min(losses) < MAX_LOSS_RATIO * losses[0]
    verdict = "passed" if learned else "FAILED"
    print(f"trial: loss from {losses[0]:.2f} to {min(losses):.2f}: {verdict}")
    return 0 if learned else 1


def main() -> int:
    """Parse the command line and build the model. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the bundled demo model from scratch.")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "demo-model")
    parser.add_argument(
        "--trial", action="store_true", help="run 1 %% of the steps and install nothing"
    )
    parser.add_argument("--draft", action="store_true", help="make the draft model only")
    options = parser.parse_args()
    if options.trial:
        return trial()
    pipeline = Pipeline(options.work)
    if options.draft:
        pipeline.make_draft()
        install_draft(options.work)
        return 0
    pipeline.run()
    pipeline.examine()
    install(options.work)
    card.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
