"""Train the demo model, or a LoRA for it, from the corpus.

On a CPU, two processes with one thread each compute half of every step and sum their gradients.
This is faster than two threads in one process, whose barriers wait for the scheduler as soon as the
machine runs anything else. Results do not depend on time: a run is reproducible on the same kind
of machine, and an interrupted run resumes from its last checkpoint.
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
from tools.demo_model.network import (
    Network,
    Shape,
    Weights,
    merge_adapter,
    new_adapter,
    new_weights,
)
from tools.demo_model.optimizer import Optimizer, schedule
from tools.demo_model.rows import Corpus

SECONDS_PER_LINE = 10.0
SECONDS_PER_CHECKPOINT = 300.0
# Reuse freed memory, and use large pages: new pages for every tensor take 10 % of the time.
ALLOCATOR = ":".join(
    f"glibc.malloc.{name}"
    for name in ("hugetlb=1", "mmap_threshold=33554432", "trim_threshold=4294967296")
)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters and paths of a training run."""

    corpus: Path
    out: Path
    log: Path
    shape: Shape = dataclasses.field(default_factory=Shape)
    base: Path | None = None  # if set, train a LoRA for these weights
    seed: int = 1
    tokens_per_step: int = 8192
    muon_rate: float = 0.02
    adam_rate: float = 0.003
    decay: float = 0.1  # weight decay of the matrices, relative to the learning rate
    compiled: bool = True

    def identity(self, corpus: Corpus) -> dict[str, Any]:
        """Values that a checkpoint must match for this run to resume from it."""
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
    """Number of processes that share a step: 1 on a GPU, else one per core, at most 2."""
    return 1 if torch.cuda.is_available() else min(2, os.cpu_count() or 1)


def train(settings: Settings) -> None:
    """Train and write the checkpoint to `settings.out`. Raises the exception of a process."""
    world = num_processes()
    if world == 1:
        Run(settings, 0, 1).run()
        return
    os.environ.setdefault("GLIBC_TUNABLES", ALLOCATOR)
    with tempfile.TemporaryDirectory() as folder:
        # If a process fails, or this one exits, the others are terminated.
        multiprocessing.spawn(_process, (settings, world, f"{folder}/rendezvous"), nprocs=world)


def _process(rank: int, settings: Settings, world: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    # SIGINT announces the exit of the parent; background processes ignore it by default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    Run(settings, rank, world).run()
    dist.barrier()
    dist.destroy_process_group()
    # Skip the interpreter's shutdown: in one run of 20, a running torch thread makes it abort.
    # All results are written.
    os._exit(0)


class Run:
    """A training run, as seen by one of its processes."""

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
        """Train from the last checkpoint, or from the start."""
        settings = self.settings
        steps = self.corpus.steps(settings.tokens_per_step, settings.seed)
        done = self._resume()
        parameters = sum(each.numel() for each in self.trained.values())
        tokens = sum(length * len(rows) for length, rows in steps)
        self.progress.log_line(
            f"{parameters:,} parameters, {len(steps)} steps, {tokens:,} tokens, "
            f"{self.world} processes, {self.device}, from step {done}"
        )
        self.progress.start(len(steps), done)
        last_save = time.monotonic()
        for number in range(done, len(steps)):
            factor = schedule(number, len(steps))
            loss = self._step(steps[number], number, factor)
            length, rows = steps[number]
            self.progress.step(number + 1, length * len(rows), loss, factor)
            if self.rank == 0 and time.monotonic() - last_save > SECONDS_PER_CHECKPOINT:
                self._save(self._partial, number + 1, self.optimizer.state())
                last_save = time.monotonic()
        if self.rank == 0:
            self._save(settings.out, len(steps), None)
            self._partial.unlink(missing_ok=True)
        self.progress.log_line(f"wrote {settings.out.name}")

    def _step(self, step: Any, number: int, factor: float) -> float:
        """Train one step together with the other processes. Returns its loss."""
        batch = self.corpus.batch(step, self.rank, self.world, (self.settings.seed, number))
        tokens, chosen, targets, share = (
            torch.from_numpy(each).to(self.device)
            for each in (batch.tokens, batch.chosen, batch.targets, batch.weights)
        )
        weights = merge_adapter(self.base, self.trained) if self.base else self.trained
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
            self.progress.log_line(f"torch.compile failed, training will be slower: {error}")
            return False
        return True

    @property
    def _partial(self) -> Path:
        return self.settings.out.with_name(f"{self.settings.out.name}.partial")

    def _resume(self) -> int:
        """Restore the checkpoint of an interrupted run. Returns the number of completed steps."""
        if not self._partial.exists():
            return 0
        saved = checkpoint.load(self._partial)
        if saved.settings != self.identity or saved.optimizer is None:
            self.progress.log_line(
                f"{self._partial.name} is from a run with other settings; starting from step 0"
            )
            return 0
        with torch.no_grad():
            for name, each in self.trained.items():
                each.copy_(saved.weights[name])
        self.optimizer.restore(saved.optimizer)
        return saved.step

    def _save(self, path: Path, step: int, optimizer: dict[str, Any] | None) -> None:
        Checkpoint(self.shape, self.identity, step, self.trained, optimizer).save(path)


class Progress:
    """Report progress every 10 s on stdout and in the log. Without a log, report nothing."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        self.started = self.last = time.monotonic()
        self.tokens = self.tokens_since = self.first = self.total = 0
        self.losses: list[float] = []

    def start(self, total: int, done: int) -> None:
        """Start the clock at step `done` of `total`."""
        self.total, self.first = total, done
        self.started = self.last = time.monotonic()

    def step(self, number: int, tokens: int, loss: float, factor: float) -> None:
        """Count a step; log a line every 10 s and after the last step."""
        self.tokens += tokens
        self.tokens_since += tokens
        self.losses.append(loss)
        now = time.monotonic()
        if now - self.last < SECONDS_PER_LINE and number < self.total:
            return
        elapsed = now - self.started
        remaining = elapsed / (number - self.first) * (self.total - number)
        self.log_line(
            f"step {number}/{self.total}  {self.tokens / 1e6:.2f} M tokens  "
            f"loss {sum(self.losses) / len(self.losses):.4f}  rate {factor:.3f}  "
            f"{self.tokens_since / (now - self.last):,.0f} tokens/s  "
            f"elapsed {_clock(elapsed)}  left {_clock(remaining)}"
        )
        self.last, self.tokens_since, self.losses = now, 0, []

    def log_line(self, text: str) -> None:
        """Write one line to stdout and to the log."""
        if self.log is None:
            return
        print(text, flush=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            log.write(text + "\n")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
