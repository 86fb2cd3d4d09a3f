"""Trains the demo model, or a LoRA for it, from the corpus.

On a CPU two processes with one thread each train half of every step and add up their gradients:
with threads instead, every barrier waits for a time slice as soon as anything else runs. Nothing
depends on the clock, so a run gives the same weights again on the same kind of machine, and one
that was stopped goes on where its last checkpoint stood.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

from tools.demo_model import checkpoint
from tools.demo_model.checkpoint import Checkpoint
from tools.demo_model.network import Network, Shape, Weights, adapted, new_adapter, new_weights
from tools.demo_model.optimizer import Optimizer, schedule
from tools.demo_model.rows import Corpus

SECONDS_PER_LINE = 10.0
SECONDS_PER_CHECKPOINT = 300.0
# Keep freed memory and take it in large pages: new pages for every tensor cost a tenth of the time.
ALLOCATOR = ":".join(
    f"glibc.malloc.{name}"
    for name in ("hugetlb=1", "mmap_threshold=33554432", "trim_threshold=4294967296")
)


@dataclass(frozen=True)
class Settings:
    """What decides the resulting weights, and where to put them."""

    corpus: Path
    out: Path
    log: Path
    shape: Shape = dataclasses.field(default_factory=Shape)
    base: Path | None = None  # given: train a LoRA for these weights
    seed: int = 1
    tokens_per_step: int = 8192
    muon_rate: float = 0.02
    adam_rate: float = 0.003
    decay: float = 0.1  # of the matrices, as a part of the learning rate; without, they grow
    compiled: bool = True

    def identity(self, corpus: Corpus) -> dict[str, Any]:
        """What a checkpoint must agree with for this run to go on from it."""
        return {
            "corpus": corpus.digest,
            "base": hashlib.sha256(self.base.read_bytes()).hexdigest() if self.base else "",
            "decay": self.decay,
            "seed": self.seed,
            "tokens_per_step": self.tokens_per_step,
            "muon_rate": self.muon_rate,
            "adam_rate": self.adam_rate,
            "processes": num_processes(),
            "shape": dataclasses.asdict(self.shape),
        }


def num_processes() -> int:
    """How many processes share a step: one on a GPU, else one for each of the first two cores."""
    return 1 if torch.cuda.is_available() else min(2, os.cpu_count() or 1)


def train(settings: Settings) -> None:
    """Train to the end and leave the checkpoint in `settings.out`. Raises what a process raised."""
    world = num_processes()
    if world == 1:
        Run(settings, 0, 1).run()
        return
    os.environ.setdefault("GLIBC_TUNABLES", ALLOCATOR)
    with tempfile.TemporaryDirectory() as folder:
        # One that fails takes the others down, and so does the end of this process.
        multiprocessing.spawn(_process, (settings, world, f"{folder}/meeting"), nprocs=world)


def _process(rank: int, settings: Settings, world: int, meeting: str) -> None:
    torch.set_num_threads(1)
    # The end of the parent comes as SIGINT, which a process started in the background ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    Run(settings, rank, world).run()
    dist.barrier()
    dist.destroy_process_group()
    # All is done and written. The interpreter's own end may meet a thread of torch that still runs,
    # and that aborts the process, seen once in twenty.
    os._exit(0)


class Run:
    """One process's part in a training run."""

    def __init__(self, settings: Settings, rank: int, world: int) -> None:
        self.settings, self.rank, self.world = settings, rank, world
        self.corpus = Corpus(settings.corpus)
        self.identity = settings.identity(self.corpus)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.progress = Progress(settings.log if rank == 0 else None)
        compiled = settings.compiled and self._can_compile()
        self.shape, self.base, weights = self._start()
        self.network = Network(self.shape, self.device, torch.bfloat16, compiled=compiled)
        self.trained = {name: each.to(self.device) for name, each in weights.items()}
        self.optimizer = Optimizer(
            self.trained, settings.muon_rate, settings.adam_rate, settings.decay
        )
        for each in self.trained.values():
            each.requires_grad_()

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, to the end."""
        settings = self.settings
        steps = self.corpus.steps(settings.tokens_per_step, settings.seed)
        done = self._resumed()
        parameters = sum(each.numel() for each in self.trained.values())
        tokens = sum(length * len(rows) for length, rows in steps)
        self.progress.say(
            f"{parameters:,} parameters, {len(steps)} steps, {tokens:,} tokens, "
            f"{self.world} processes, {self.device}, from step {done}"
        )
        self.progress.start(len(steps), done)
        saved = time.monotonic()
        for number in range(done, len(steps)):
            factor = schedule(number, len(steps))
            loss = self._step(steps[number], number, factor)
            length, rows = steps[number]
            self.progress.step(number + 1, length * len(rows), loss, factor)
            if self.rank == 0 and time.monotonic() - saved > SECONDS_PER_CHECKPOINT:
                self._save(self._partial, number + 1, self.optimizer.state())
                saved = time.monotonic()
        if self.rank == 0:
            self._save(settings.out, len(steps), None)
            self._partial.unlink(missing_ok=True)
        self.progress.say(f"wrote {settings.out.name}")

    def _step(self, step: Any, number: int, factor: float) -> float:
        """Train one step together with the other processes; returns its loss."""
        batch = self.corpus.batch(step, self.rank, self.world, (self.settings.seed, number))
        tokens, chosen, targets, share = (
            torch.from_numpy(each).to(self.device)
            for each in (batch.tokens, batch.chosen, batch.targets, batch.weights)
        )
        weights = adapted(self.base, self.trained) if self.base else self.trained
        loss = self.network.loss_sum(weights, tokens, chosen, targets, share)
        parts = torch.autograd.grad(loss, list(self.trained.values()))
        flat = torch.cat(
            [*(part.flatten() for part in parts), torch.stack((loss.detach(), share.sum()))]
        )
        if self.world > 1:
            dist.all_reduce(flat)
        flat[:-1] /= flat[-1].clone()
        *split, loss, _ = flat.split([*(each.numel() for each in parts), 1, 1])
        gradients = {
            name: part.view_as(each)
            for part, (name, each) in zip(split, self.trained.items(), strict=True)
        }
        self.optimizer.step(gradients, factor)
        return float(loss)

    def _start(self) -> tuple[Shape, Weights | None, Weights]:
        settings = self.settings
        if settings.base is None:
            return settings.shape, None, new_weights(settings.shape, settings.seed)
        base = checkpoint.load(settings.base)
        weights = {name: each.to(self.device) for name, each in base.weights.items()}
        return base.shape, weights, new_adapter(base.shape, settings.seed)

    def _can_compile(self) -> bool:
        try:
            torch.compile(lambda x: x.exp() + 1)(torch.ones(8, device=self.device))
        except Exception as error:
            self.progress.say(f"torch.compile does not work here, so training is slower: {error}")
            return False
        return True

    @property
    def _partial(self) -> Path:
        return self.settings.out.with_name(f"{self.settings.out.name}.partial")

    def _resumed(self) -> int:
        """Take over the last checkpoint of a run like this one; returns the steps it had done."""
        if not self._partial.exists():
            return 0
        found = checkpoint.load(self._partial)
        if found.settings != self.identity or found.optimizer is None:
            self.progress.say(f"{self._partial.name} is of another run, so this one starts anew")
            return 0
        with torch.no_grad():
            for name, each in self.trained.items():
                each.copy_(found.weights[name])
        self.optimizer.restore(found.optimizer)
        return found.step

    def _save(self, path: Path, step: int, optimizer: dict[str, Any] | None) -> None:
        Checkpoint(self.shape, self.identity, step, self.trained, optimizer).save(path)


class Progress:
    """A line every ten seconds, on the screen and in the log; silent where there is no log."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        self.started = self.last = time.monotonic()
        self.tokens = self.tokens_since = self.first = self.total = 0
        self.losses: list[float] = []

    def start(self, total: int, done: int) -> None:
        """Begin to count."""
        self.total, self.first = total, done
        self.started = self.last = time.monotonic()

    def step(self, number: int, tokens: int, loss: float, factor: float) -> None:
        """Count a step, and tell when it is time or the end."""
        self.tokens += tokens
        self.tokens_since += tokens
        self.losses.append(loss)
        now = time.monotonic()
        if now - self.last < SECONDS_PER_LINE and number < self.total:
            return
        elapsed = now - self.started
        left = elapsed / (number - self.first) * (self.total - number)
        self.say(
            f"step {number}/{self.total}  {self.tokens / 1e6:.2f} M tokens  "
            f"loss {sum(self.losses) / len(self.losses):.4f}  rate {factor:.3f}  "
            f"{self.tokens_since / (now - self.last):,.0f} tokens/s  "
            f"elapsed {_clock(elapsed)}  left {_clock(left)}"
        )
        self.last, self.tokens_since, self.losses = now, 0, []

    def say(self, text: str) -> None:
        """One line on the screen and in the log."""
        if self.log is None:
            return
        print(text, flush=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            log.write(text + "\n")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
