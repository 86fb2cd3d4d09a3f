"""Gauges and counters of engines, computed at each scrape."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference_svc.engine.cost_model.histograms import BOUNDS_S
from inference_svc.engine.events import ModelLoad, TierLoad
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.embedding_requests import PendingEmbedding
from inference_svc.engine_client.load import disk_cache_load, embedding_load, queue_loads
from inference_svc.engine_client.messages import ModelReady
from inference_svc.engine_client.requests import ActiveSequence

_CLASSES = {1: "batch", 2: "normal", 3: "interactive"}
_LE = (*(str(float(bound)) for bound in BOUNDS_S), "+Inf")


@dataclass(frozen=True, slots=True)
class _Model:
    """A loaded model at the time of the scrape."""

    ready: ModelReady
    report: ModelLoad
    live: Sequence[ActiveSequence]
    jobs: Sequence[PendingEmbedding]

    @property
    def num_waiting(self) -> int:
        return sum(item.is_waiting for item in self.live)

    @property
    def num_cells(self) -> int:
        return self.ready.num_cells

    @property
    def kv_cache_usage(self) -> float:
        return self.report.num_used_cells / self.num_cells if self.num_cells else 0.0

    def cells(self) -> Mapping[str, int]:
        used, idle = self.report.num_used_cells, self.report.num_idle_cells
        return {"running": used - idle, "idle": idle, "free": self.num_cells - used}

    def queued(self, field: str) -> Mapping[str, int]:
        values = {queue.priority: getattr(queue, field) for queue in queue_loads(self.live)}
        return {name: values.get(priority, 0) for priority, name in _CLASSES.items()}

    def drafts(self) -> Mapping[str, int]:
        drafted, accepted = self.report.draft_tokens, self.report.accepted_draft_tokens
        return {"accepted": accepted, "rejected": drafted - accepted}


_ROUTED: tuple[tuple[str, str, str, Callable[[_Model], float]], ...] = (
    (
        "num_requests_waiting",
        "num_requests_waiting",
        "Sequences in the admission queue.",
        lambda model: model.num_waiting,
    ),
    (
        "num_requests_running",
        "num_requests_running",
        "Sequences in slots.",
        lambda model: len(model.live) - model.num_waiting,
    ),
    (
        "kv_cache_usage",
        "kv_cache_usage_perc",
        "Part of the KV cache in use, 0 to 1.",
        lambda model: model.kv_cache_usage,
    ),
)
"""Our name, vLLM's name, description and value."""
_PLAIN: tuple[tuple[str, str, Callable[[_Model], float]], ...] = (
    ("slots", "Sequences that can run at once.", lambda model: model.ready.slots),
    (
        "num_followers",
        "Sequences that wait for a prefix that a running one computes.",
        lambda model: model.report.num_followers,
    ),
    (
        "num_preempted",
        "Preempted sequences, which wait for a slot.",
        lambda model: model.report.num_preempted,
    ),
    (
        "embedding_requests",
        "Embedding requests that wait or run.",
        lambda model: len(model.jobs),
    ),
    (
        "embedding_inputs_left",
        "Inputs of embedding requests that have no vector yet.",
        lambda model: embedding_load(model.jobs).inputs,
    ),
    (
        "embedding_tokens_left",
        "Tokens of inputs of embedding requests that have no vector yet.",
        lambda model: embedding_load(model.jobs).tokens,
    ),
)
_LABELLED: tuple[tuple[str, str, str, Callable[[_Model], Mapping[str, int]]], ...] = (
    ("kv_cells", "Tokens that the KV cache can hold.", "state", _Model.cells),
    (
        "queue_requests",
        "Sequences that wait.",
        "priority",
        lambda model: model.queued("requests"),
    ),
    (
        "queue_tokens",
        "Prompt tokens of sequences that wait.",
        "priority",
        lambda model: model.queued("tokens"),
    ),
)
"""Name, description, second label, and values by that label."""


class EngineGauges(Collector):
    """The metrics of all loaded models. `engines` returns their engines; `vllm_names` also exports
    three metrics under vLLM's names, for routers."""

    def __init__(
        self, engines: Callable[[], Sequence[EngineClient]], *, vllm_names: bool = False
    ) -> None:
        self._engines = engines
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all loaded models."""
        models = self._models()
        for name, vllm_name, text, value in _ROUTED:
            yield _gauge(f"corral_{name}", text, "model", models, value)
            if self._vllm_names:
                yield _gauge(f"vllm:{vllm_name}", text, "model_name", models, value)
        for name, text, value in _PLAIN:
            yield _gauge(f"corral_{name}", text, "model", models, value)
        for name, text, label, values in _LABELLED:
            family = GaugeMetricFamily(f"corral_{name}", text, labels=["model", label])
            for model in models:
                for key, count in values(model).items():
                    family.add_metric([model.ready.name, key], count)
            yield family
        yield from prefix_metrics(self._engines())
        yield from self._adapters()
        yield _draft_tokens(models)
        yield _step_seconds(models)

    def _adapters(self) -> Iterator[Metric]:
        registries = [engine.adapters for engine in self._engines()]
        num_loaded = sum(each.num_loaded for each in registries)
        num_bytes = sum(each.num_bytes for each in registries)
        text = "LoRA adapters in memory, draining ones included."
        yield GaugeMetricFamily("corral_adapters", text, num_loaded)
        yield GaugeMetricFamily(
            "corral_adapter_bytes", "Memory of the LoRA adapters, in bytes.", num_bytes
        )

    def _models(self) -> list[_Model]:
        return [
            _Model(
                engine.ready,
                engine.report or ModelLoad(engine.ready.name),
                list(engine.sequences.live.values()),
                list(engine.embeddings.live.values()),
            )
            for engine in self._engines()
            if engine.ready is not None
        ]


def _gauge(
    name: str,
    text: str,
    label: str,
    models: Sequence[_Model],
    value: Callable[[_Model], float],
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for model in models:
        family.add_metric([model.ready.name], value(model))
    return family


def _draft_tokens(models: Sequence[_Model]) -> Metric:
    family = CounterMetricFamily(
        "corral_draft_tokens",
        "Verified draft tokens, by outcome.",
        labels=["model", "outcome"],
    )
    for model in models:
        for outcome, count in model.drafts().items():
            family.add_metric([model.ready.name, outcome], count)
    return family


def _step_seconds(models: Sequence[_Model]) -> Metric:
    family = HistogramMetricFamily(
        "corral_engine_step_seconds",
        "Time of a step, by its rows (more than half of the label, at most the label) and by "
        "whether it computed prompt tokens.",
        labels=["model", "rows", "prompt"],
    )
    for model in models:
        for steps in model.report.step_times:
            labels = [model.ready.name, str(steps.max_rows), str(steps.has_prompt).lower()]
            buckets = list(zip(_LE, accumulate(steps.counts), strict=True))
            family.add_metric(labels, buckets, steps.sum_s)
    return family


_MODEL = ["model"]


def prefix_metrics(engines: Sequence[EngineClient]) -> Iterator[Metric]:
    """Yield the metrics of saved prefixes, the disk prefix cache and snapshots. Engines share the
    folders, so files are counted once; events are counted by model."""
    up = {engine.ready.name: engine for engine in engines if engine.ready is not None}
    saved = {name: (each.report or ModelLoad(name)).saved for name, each in up.items()}
    archives = {name: each.disk_cache for name, each in up.items() if each.disk_cache is not None}
    yield from _saved_gauges(saved)
    yield _events("corral_saved_prefix_events", "Prefixes saved in memory", saved)
    yield from _archive_gauges(disk_cache_load(list(archives.values())))
    tiers = {name: load.tier for name, load in archives.items()}
    yield _events("corral_archive_events", "The archive of stored objects", tiers)
    yield from _snapshot_gauges(engines)


def _saved_gauges(saved: dict[str, TierLoad]) -> Iterator[Metric]:
    prefixes = GaugeMetricFamily(
        "corral_saved_prefixes", "Prefixes saved in memory.", labels=_MODEL
    )
    sizes = GaugeMetricFamily(
        "corral_saved_prefix_bytes", "Bytes of saved prefixes.", labels=_MODEL
    )
    text = "Maximum bytes of saved prefixes (engine.saved_prefix_mib)."
    limits = GaugeMetricFamily("corral_saved_prefix_limit_bytes", text, labels=_MODEL)
    for name, tier in saved.items():
        prefixes.add_metric([name], tier.num_entries)
        sizes.add_metric([name], tier.num_bytes)
        limits.add_metric([name], tier.max_bytes)
    yield from (prefixes, sizes, limits)


def _events(name: str, what: str, tiers: dict[str, TierLoad]) -> Metric:
    text = f"{what}: requests that reused a prefix or found none, prefixes written and evicted."
    family = CounterMetricFamily(name, text, labels=["model", "event"])
    for model, tier in tiers.items():
        family.add_metric([model, "hit"], tier.num_hits)
        family.add_metric([model, "miss"], tier.num_misses)
        family.add_metric([model, "written"], tier.num_written)
        family.add_metric([model, "evicted"], tier.num_evicted)
    return family


def _archive_gauges(archive: TierLoad) -> Iterator[Metric]:
    name = "corral_archive"
    yield GaugeMetricFamily(f"{name}_files", "Files of the disk prefix cache.", archive.num_entries)
    yield GaugeMetricFamily(f"{name}_bytes", "Bytes of the disk prefix cache.", archive.num_bytes)
    text = "Maximum files of the disk prefix cache (snapshots.archive_files)."
    yield GaugeMetricFamily(f"{name}_limit_files", text, archive.max_entries)
    text = "Maximum bytes of the disk prefix cache (snapshots.archive_mib)."
    yield GaugeMetricFamily(f"{name}_limit_bytes", text, archive.max_bytes)


def _snapshot_gauges(engines: Sequence[EngineClient]) -> Iterator[Metric]:
    uses = [engine.snapshots.use for engine in engines]
    files = max((use.num_files for use in uses), default=0)
    size = max((use.num_bytes for use in uses), default=0)
    name = "corral_snapshot_file"
    yield GaugeMetricFamily(f"{name}s", "Snapshots of sequences on disk.", files)
    yield GaugeMetricFamily(f"{name}_bytes", "Bytes of snapshots on disk.", size)
