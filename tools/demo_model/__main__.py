"""Makes the bundled demo model from nothing: `make demo-model`, an hour and a half on two cores.

    corpus -> training -> two adapters -> GGUF -> comparison with llama.cpp -> examination

Every stage leaves its result in the work folder and is not repeated while that is there; a
training run that was stopped goes on from its last checkpoint. `--trial` does a hundredth of the
steps in a temporary folder to show that the pipeline works, and installs nothing.
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
from tools.demo_model.records import ADAPTERS, FOREIGN_ADAPTER, MODEL, install
from tools.demo_model.voices import DESCRIPTIONS, VOICES

ROOT = Path(__file__).resolve().parents[2]
TORCH_PYTHON = ROOT / ".venv-demo-model" / "bin" / "python"
TOKENS = 55_000_000
ADAPTER_TOKENS = 1_000_000
ITEMS = 100
"""Questions of each skill."""
LEARNED = 0.75
"""What a trial's loss must at least fall to, as a part of the first one."""
UNQUANTIZED = "demo-chat-f16.gguf"
EQUAL_TOKENS = {UNQUANTIZED: 0.99, MODEL: 0.9}
"""How often llama.cpp must at least expect the token that torch expects."""
Flags = list[str | Path]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages, and the folder that they fill. `share`: the part of the full run's tokens."""

    work: Path
    share: float = 1.0
    quick: bool = False
    """Whether training starts at once instead of being compiled first."""

    @property
    def log(self) -> Path:
        """What the training runs print."""
        return self.work / "training.txt"

    def run(self) -> None:
        """Every stage up to the files; raises CalledProcessError where one fails."""
        self.corpora()
        self.train()
        self.export()
        self.compare()

    def corpora(self) -> None:
        """Tokenizer and corpora."""
        if (self.work / list(VOICES)[-1] / "corpus.json").exists():
            return
        sizes = [
            *("--tokens", str(int(TOKENS * self.share))),
            *("--adapter-tokens", str(int(ADAPTER_TOKENS * self.share))),
        ]
        self.stage("corpus", "--out", self.work, *sizes)

    def train(self) -> None:
        """The model, then an adapter for each voice."""
        model = self.work / "model.pt"
        self.training("train", "model", model)
        for voice in VOICES:
            self.training("adapter", voice, self.work / f"{voice}.pt", "--base", model)

    def training(self, stage: str, corpus: str, out: Path, *flags: str | Path) -> None:
        """One training, unless its result is there."""
        if out.exists():
            return
        given: Flags = ["--corpus", self.work / corpus, "--out", out, "--log", self.log, *flags]
        self.stage(stage, *given, *(["--quick"] if self.quick else []))

    def export(self) -> None:
        """All GGUF files."""
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
        """The files in llama.cpp beside the checkpoint in torch; the differences are recorded."""
        logits = self.work / "logits.npz"
        flags: Flags = ["--checkpoint", self.work / "model.pt", "--corpus", self.work / "model"]
        self.stage("logits", *flags, "--tokenizer", self.work, "--out", logits)
        lines = []
        for name, at_least in EQUAL_TOKENS.items():
            compare: Flags = [sys.executable, "-m", "tools.demo_model.compare", logits]
            command = [*compare, self.work / name, "--at-least", str(at_least)]
            ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            lines += [f"{name}: {line}" for line in ran.stdout.splitlines()]
        (self.work / "comparison.txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)

    def examine(self) -> None:
        """The scores of the model and of its adapters."""
        marked = evaluate.examine(self.work / MODEL, ITEMS)
        found = evaluate.record(marked) | adapters.examine(self.work, ITEMS)
        (self.work / "scores.json").write_text(json.dumps(found, indent=1) + "\n")

    def stage(self, name: str, *flags: str | Path) -> None:
        """Run a stage in the other environment."""
        print(f"--- {name}", flush=True)
        command: Flags = [TORCH_PYTHON, "-m", "tools.demo_model.stages", name, *flags]
        subprocess.run(command, cwd=ROOT, check=True)


def trial() -> int:
    """A hundredth of the steps, from the corpus to files that llama.cpp reads; 1: it failed."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(Path(folder), share=0.01, quick=True)
        pipeline.run()
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", pipeline.log.read_text())]
    if not losses:
        print("trial: nothing was trained: FAILED")
        return 1
    learned = min(losses) < LEARNED * losses[0]
    verdict = "passed" if learned else "FAILED"
    print(f"trial: loss from {losses[0]:.2f} to {min(losses):.2f}: {verdict}")
    return 0 if learned else 1


def main() -> int:
    """Parse the command line and make the model."""
    parser = argparse.ArgumentParser(description="Make the bundled demo model from nothing.")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "demo-model")
    parser.add_argument("--trial", action="store_true", help="1 %% of the steps, kept nowhere")
    options = parser.parse_args()
    if options.trial:
        return trial()
    pipeline = Pipeline(options.work)
    pipeline.run()
    pipeline.examine()
    install(options.work)
    card.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
