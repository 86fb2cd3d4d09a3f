"""The places that keep computed prefixes, as Prometheus metrics: memory, the archive of stored
objects, and the snapshots that operators asked for."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inference_svc.engine.events import ModelLoad, TierLoad
from inference_svc.runtime.load import archive_load
from inference_svc.runtime.worker import EngineWorker

_MODEL = ["model"]


def prefix_metrics(workers: Sequence[EngineWorker]) -> Iterator[Metric]:
    """All of them, of the engines that there are. The files are of one folder each, which engines
    share; what happened to them is counted by model."""
    up = {worker.ready.name: worker for worker in workers if worker.ready is not None}
    saved = {name: (each.report or ModelLoad(name)).saved for name, each in up.items()}
    archives = {name: each.archive for name, each in up.items() if each.archive is not None}
    yield from _saved_gauges(saved)
    yield _events("corral_saved_prefix_events", "Prefixes saved in memory", saved)
    yield from _archive_gauges(archive_load(list(archives.values())))
    counted = {name: load.tier for name, load in archives.items()}
    yield _events("corral_archive_events", "The archive of stored objects", counted)
    yield from _snapshot_gauges(workers)


def _saved_gauges(saved: dict[str, TierLoad]) -> Iterator[Metric]:
    prefixes = GaugeMetricFamily(
        "corral_saved_prefixes", "Prefixes saved in memory.", labels=_MODEL
    )
    sizes = GaugeMetricFamily("corral_saved_prefix_bytes", "Their size.", labels=_MODEL)
    text = "The memory for them (engine.saved_prefix_mib)."
    limits = GaugeMetricFamily("corral_saved_prefix_limit_bytes", text, labels=_MODEL)
    for name, tier in saved.items():
        prefixes.add_metric([name], tier.num_entries)
        sizes.add_metric([name], tier.num_bytes)
        limits.add_metric([name], tier.max_bytes)
    yield from (prefixes, sizes, limits)


def _events(name: str, what: str, tiers: dict[str, TierLoad]) -> Metric:
    text = f"{what}: requests that began there (hit), or anew (miss), prefixes in and out."
    family = CounterMetricFamily(name, text, labels=["model", "event"])
    for model, tier in tiers.items():
        family.add_metric([model, "hit"], tier.num_hits)
        family.add_metric([model, "miss"], tier.num_misses)
        family.add_metric([model, "written"], tier.num_written)
        family.add_metric([model, "evicted"], tier.num_evicted)
    return family


def _archive_gauges(archive: TierLoad) -> Iterator[Metric]:
    name = "corral_archive"
    yield GaugeMetricFamily(f"{name}_files", "Stored objects on disk.", archive.num_entries)
    yield GaugeMetricFamily(f"{name}_bytes", "Their size.", archive.num_bytes)
    text = "The most files (snapshots.archive_files)."
    yield GaugeMetricFamily(f"{name}_limit_files", text, archive.max_entries)
    text = "Their most bytes (snapshots.archive_mib)."
    yield GaugeMetricFamily(f"{name}_limit_bytes", text, archive.max_bytes)


def _snapshot_gauges(workers: Sequence[EngineWorker]) -> Iterator[Metric]:
    uses = [worker.snapshots.use for worker in workers]
    files = max((use.num_files for use in uses), default=0)
    size = max((use.num_bytes for use in uses), default=0)
    name = "corral_snapshot_file"
    yield GaugeMetricFamily(f"{name}s", "Snapshots of sequences on disk.", files)
    yield GaugeMetricFamily(f"{name}_bytes", "Their size.", size)
