"""Gauges and counters of engines and encoders, computed at each scrape."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference_svc.engine.cost_model.step_clock import BOUNDS_S
from inference_svc.engine.events import DraftTokens, ModelLoad, TierLoad
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.load import (
    EmbeddingLoad,
    disk_cache_load,
    embedding_load,
    queue_loads,
)
from inference_svc.engine_client.messages import ModelReady
from inference_svc.engine_client.requests import ActiveSequence
from inference_svc.media.processor import MediaProcessor
from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.model_pool.eviction import ModelState

_CLASSES = {1: "batch", 2: "normal", 3: "interactive"}
_LE = (*(str(float(bound)) for bound in BOUNDS_S), "+Inf")


@dataclass(frozen=True, slots=True)
class _Model:
    """A loaded model at the time of the scrape; `archive` is None until its engine has used it."""

    ready: ModelReady
    report: ModelLoad
    live: Sequence[ActiveSequence]
    embedding: EmbeddingLoad
    archive: TierLoad | None

    @classmethod
    def of(cls, engine: EngineClient, ready: ModelReady) -> "_Model":
        return cls(
            ready,
            engine.report or ModelLoad(ready.name),
            list(engine.sequences.live.values()),
            embedding_load(engine.embeddings.live.values()),
            engine.disk_cache.tier if engine.disk_cache is not None else None,
        )

    @property
    def num_waiting(self) -> int:
        return sum(item.is_waiting for item in self.live)

    @property
    def num_running(self) -> int:
        return len(self.live) - self.num_waiting

    @property
    def kv_cache_usage(self) -> float:
        num_cells = self.ready.num_cells
        return self.report.num_used_cells / num_cells if num_cells else 0.0

    def cells(self) -> Mapping[str, int]:
        used, idle = self.report.num_used_cells, self.report.num_idle_cells
        return {"running": used - idle, "idle": idle, "free": self.ready.num_cells - used}

    def queued(self, field: str) -> Mapping[str, float]:
        values = {queue.priority: getattr(queue, field) for queue in queue_loads(self.live)}
        return {name: values.get(priority, 0) for priority, name in _CLASSES.items()}

    def drafts(self) -> Mapping[str, DraftTokens]:
        """By their method."""
        (drafted, accepted), by_model = self._drafts, self.report.by_draft_model
        by_ngram = DraftTokens(drafted - by_model.drafted, accepted - by_model.accepted)
        return {"ngram": by_ngram, "draft_model": by_model}

    @property
    def _drafts(self) -> DraftTokens:
        return DraftTokens(self.report.draft_tokens, self.report.accepted_draft_tokens)


_GAUGES = (
    ("num_requests_waiting", "num_waiting", "Sequences in the admission queue."),
    ("num_requests_running", "num_running", "Sequences in slots."),
    ("kv_cache_usage", "kv_cache_usage", "Part of the KV cache in use, 0 to 1."),
    ("slots", "ready.slots", "Sequences that can run at once."),
    (
        "num_followers",
        "report.num_followers",
        "Sequences that wait for a prefix that a running one computes.",
    ),
    ("num_preempted", "report.num_preempted", "Preempted sequences, which wait for a slot."),
    ("embedding_requests", "embedding.requests", "Embedding requests that wait or run."),
    (
        "embedding_inputs_left",
        "embedding.inputs",
        "Inputs of embedding requests that have no vector yet.",
    ),
    (
        "embedding_tokens_left",
        "embedding.tokens",
        "Tokens of inputs of embedding requests that have no vector yet.",
    ),
    ("saved_prefixes", "report.saved.num_entries", "Prefixes saved in memory."),
    ("saved_prefix_bytes", "report.saved.num_bytes", "Bytes of saved prefixes."),
    (
        "saved_prefix_limit_bytes",
        "report.saved.max_bytes",
        "Maximum bytes of saved prefixes (engine.saved_prefix_mib).",
    ),
)
"""Name, attribute of `_Model` and description."""
_VLLM_NAMES = {
    "num_requests_waiting": "num_requests_waiting",
    "num_requests_running": "num_requests_running",
    "kv_cache_usage": "kv_cache_usage_perc",
}
_Labelled = tuple[str, str, str, Callable[[_Model], Mapping[str, float]]]
"""Name, description, second label, and values by that label."""
_LABELLED_GAUGES: tuple[_Labelled, ...] = (
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
    (
        "queue_oldest_seconds",
        "Age of the sequence that has waited longest; 0 if none waits.",
        "priority",
        lambda model: model.queued("oldest_s"),
    ),
)
_TIER_EVENTS = "requests that reused a prefix or found none, prefixes written and evicted."
_COUNTERS: tuple[_Labelled, ...] = (
    (
        "saved_prefix_events",
        f"Prefixes saved in memory: {_TIER_EVENTS}",
        "event",
        lambda model: _tier_events(model.report.saved),
    ),
    (
        "archive_events",
        f"The disk prefix cache: {_TIER_EVENTS}",
        "event",
        lambda model: _tier_events(model.archive) if model.archive is not None else {},
    ),
)


def _tier_events(tier: TierLoad) -> Mapping[str, int]:
    return {
        "hit": tier.num_hits,
        "miss": tier.num_misses,
        "written": tier.num_written,
        "evicted": tier.num_evicted,
    }


class EngineGauges(Collector):
    """The metrics of all loaded models. `engines` returns their engines; `vllm_names` also exports
    what routers of the Gateway API Inference Extension read, under vLLM's names."""

    def __init__(
        self, engines: Callable[[], Sequence[EngineClient]], *, vllm_names: bool = False
    ) -> None:
        self._engines = engines
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all loaded models, and of what they share."""
        engines = self._engines()
        models = [_Model.of(engine, engine.ready) for engine in engines if engine.ready is not None]
        for name, attribute, text in _GAUGES:
            values = {model.ready.name: attrgetter(attribute)(model) for model in models}
            yield _gauge(f"corral_{name}", text, "model", values)
            if self._vllm_names and name in _VLLM_NAMES:
                yield _gauge(f"vllm:{_VLLM_NAMES[name]}", text, "model_name", values)
        if self._vllm_names:
            yield _vllm_cache_config(models)
            yield _vllm_lora_requests(models)
        for family, labelled in (
            (GaugeMetricFamily, _LABELLED_GAUGES),
            (CounterMetricFamily, _COUNTERS),
        ):
            for name, text, label, by_label in labelled:
                metric = family(f"corral_{name}", text, labels=["model", label])
                for model in models:
                    for key, count in by_label(model).items():
                        metric.add_metric([model.ready.name, key], count)
                yield metric
        yield _draft_tokens(models)
        yield _step_seconds(models)
        for name, text, total in _totals(engines):
            yield GaugeMetricFamily(f"corral_{name}", text, total)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for model, value in values.items():
        family.add_metric([model], value)
    return family


_VLLM_BLOCK_TOKENS = 16
"""vLLM's default, in which routers count; the KV cache here has no blocks."""


def _vllm_cache_config(models: Sequence[_Model]) -> Metric:
    labels = ["model_name", "block_size", "num_gpu_blocks"]
    family = GaugeMetricFamily(
        "vllm:cache_config_info", "Size of the KV cache; always 1.", labels=labels
    )
    for model in models:
        num_blocks = model.ready.num_cells // _VLLM_BLOCK_TOKENS
        family.add_metric([model.ready.name, str(_VLLM_BLOCK_TOKENS), str(num_blocks)], 1)
    return family


def _vllm_lora_requests(models: Sequence[_Model]) -> Metric:
    """The adapters of running and waiting sequences, of all models, since routers read one."""
    labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
    family = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters in use, separated by commas; the value is the time of this report.",
        labels=labels,
    )
    names: dict[bool, set[str]] = {False: set(), True: set()}
    for item in (item for model in models for item in model.live):
        names[item.is_waiting].update(adapter.name for adapter in item.adapters)
    running, waiting = (",".join(sorted(names[is_waiting])) for is_waiting in (False, True))
    max_running = sum(model.ready.slots for model in models)
    family.add_metric([str(max_running), running, waiting], time.time())
    return family


def _draft_tokens(models: Sequence[_Model]) -> Metric:
    family = CounterMetricFamily(
        "corral_draft_tokens",
        "Verified draft tokens, by outcome, and by whether they are from the text so far (ngram) "
        "or from a draft model.",
        labels=["model", "method", "outcome"],
    )
    for model in models:
        for method, (drafted, accepted) in model.drafts().items():
            family.add_metric([model.ready.name, method, "accepted"], accepted)
            family.add_metric([model.ready.name, method, "rejected"], drafted - accepted)
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


def _totals(engines: Sequence[EngineClient]) -> Iterator[tuple[str, str, int]]:
    """Yield names, descriptions and values of metrics of all models together. Engines share the
    folders, so files are counted once."""
    adapters = [engine.adapters for engine in engines]
    text = "LoRA adapters in memory, draining ones included."
    yield "adapters", text, sum(each.num_loaded for each in adapters)
    text = "Memory of the LoRA adapters, in bytes."
    yield "adapter_bytes", text, sum(each.num_bytes for each in adapters)
    loads = [engine.disk_cache for engine in engines if engine.disk_cache is not None]
    archive = disk_cache_load(loads)
    yield "archive_files", "Files of the disk prefix cache.", archive.num_entries
    yield "archive_bytes", "Bytes of the disk prefix cache.", archive.num_bytes
    text = "Maximum files of the disk prefix cache (snapshots.archive_files)."
    yield "archive_limit_files", text, archive.max_entries
    text = "Maximum bytes of the disk prefix cache (snapshots.archive_mib)."
    yield "archive_limit_bytes", text, archive.max_bytes
    uses = [engine.snapshots.use for engine in engines]
    num_files = max((use.num_files for use in uses), default=0)
    yield "snapshot_files", "Snapshots of sequences on disk.", num_files
    num_bytes = max((use.num_bytes for use in uses), default=0)
    yield "snapshot_file_bytes", "Bytes of snapshots on disk.", num_bytes


class ModelGauges(Collector):
    """The states of all models of a catalog."""

    def __init__(self, catalog: Iterable[ModelEntry]) -> None:
        self._catalog = catalog

    def collect(self) -> Iterator[Metric]:
        """Yield a metric that is 1 for the state of each model."""
        text = "1 for the state that the model is in, 0 for the others."
        family = GaugeMetricFamily("corral_model_state", text, labels=["model", "state"])
        for entry in self._catalog:
            for state in ModelState:
                family.add_metric([entry.name, state.value], entry.resident.state is state)
        yield family


_MEDIA_GAUGES = (
    ("media_waiting", "encoder.num_waiting", "Pictures and sounds that wait to be encoded."),
    ("media_cache_bytes", "cache.size", "Bytes of encoded pictures and sounds on disk."),
    (
        "media_cache_limit_bytes",
        "cache.max_bytes",
        "Maximum bytes of encoded pictures and sounds (media.vectors_mib).",
    ),
)
_MEDIA_COUNTERS = (
    ("media_encoded", "encoder.stats.encoded", "Pictures and sounds that were encoded."),
    ("media_encode_seconds", "encoder.stats.seconds", "Time spent on encoding them."),
    ("media_encoder_crashes", "encoder.stats.crashes", "Crashes of encoders."),
    ("media_cache_hits", "cache.stats.hits", "Pictures and sounds that were seen before."),
    ("media_cache_misses", "cache.stats.misses", "Pictures and sounds that were new."),
)
"""Name, attribute of `MediaProcessor` and description."""


class MediaGauges(Collector):
    """The metrics of pictures and sounds. `processors` returns those of the loaded models, by the
    names of these."""

    def __init__(self, processors: Callable[[], Mapping[str, MediaProcessor]]) -> None:
        self._processors = processors

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all loaded models with a projector."""
        processors = self._processors()
        for family, metrics in (
            (GaugeMetricFamily, _MEDIA_GAUGES),
            (CounterMetricFamily, _MEDIA_COUNTERS),
        ):
            for name, attribute, text in metrics:
                metric = family(f"corral_{name}", text, labels=["model"])
                for model, processor in processors.items():
                    metric.add_metric([model], attrgetter(attribute)(processor))
                yield metric
