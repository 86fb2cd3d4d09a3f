"""`corral export assistants`, `corral import assistants` and `corral threads migrate`."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import click
from corral.control.v1 import thread_service_pb2

from corral_cli.access import control_options
from corral_cli.connection import Connection
from corral_cli.migration.export_file import (
    Export,
    Json,
    explain_object_errors,
    index_export,
    read,
)
from corral_cli.migration.exporter import Exporter
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.importer import Importer
from corral_cli.migration.server import CALL_TIMEOUT_S, Server, call_control, list_objects
from corral_cli.migration.translator import Translator
from svc_kit.local_files import atomic_file


@click.group("export")
def export_group() -> None:
    """Export objects of a server to a file."""


@click.group("import")
def import_group() -> None:
    """Import objects from another server."""


@click.group("threads")
def threads() -> None:
    """Migrate threads of the Assistants API."""


@export_group.command("assistants")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--bytes/--no-bytes",
    "with_bytes",
    default=True,
    help="Whether to export the contents of files too.",
)
@control_options
def export_assistants(file: Path, with_bytes: bool, control: Connection) -> None:
    """Export assistants, threads, messages, vector stores and their files to FILE, one JSON object
    per line in the format of OpenAI's API.

    The contents of files are written to the folder FILE.files, each named by the file's id.
    Existing ones are not downloaded again.
    """

    async def work(server: Server) -> Mapping[str, int]:
        with atomic_file(file) as output:
            exporter = Exporter(server, output, _sibling(file, ".files") if with_bytes else None)
            await _show_progress(exporter.steps(), None)
        return exporter.counts

    click.echo(f"{file}    {_format_counts(call_control(control, work))}")


@import_group.command("assistants")
@click.argument("export", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--model",
    "models",
    multiple=True,
    help="The model for all assistants, or OLD=NEW to replace one model. Default: unchanged.",
)
@click.option(
    "--search/--no-search",
    default=True,
    help="Whether to import vector stores and file search. The server needs an embedding model.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be imported and skipped.")
@click.option(
    "--id-map",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that maps old ids to new ids. Default: EXPORT.ids.",
)
@control_options
def import_assistants(
    export: Path,
    models: tuple[str, ...],
    dry_run: bool,
    search: bool,
    id_map: Path | None,
    control: Connection,
) -> None:
    """Import assistants, threads, messages, vector stores and their files from EXPORT, a file of
    JSON lines or a folder of such files. Objects that have been imported before are skipped.

    The contents of files are read from the folder EXPORT.files, each named by the file's id.
    """
    index = index_export(export)
    default, names = _parse_models(models)
    if dry_run:
        translator = Translator(
            names,
            default,
            lambda old: old if old in index.files or old in index.stores else None,
            with_search=search,
        )
        _convert_all(index, translator)
        click.echo(f"would import {_format_counts(_counts(index))}")
        _report_skipped(translator.skipped, index)
        return

    async def work(server: Server) -> tuple[Mapping[str, int], Translator]:
        with IdMap(id_map or _sibling(export, ".ids"), control.target) as ids:
            translator = Translator(names, default, ids.get, with_search=search)
            importer = Importer(server, index, ids, translator, _sibling(export, ".files"))
            kinds = (index.files, index.stores, index.assistants, index.threads)
            await _show_progress(importer.steps(), sum(map(len, kinds)))
        return importer.counts, translator

    counts, translator = call_control(control, work)
    click.echo(f"imported {_format_counts(counts)}")
    _report_skipped(translator.skipped, index)


@threads.command("migrate")
@click.argument("thread_ids", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All threads of the project.")
@control_options
def migrate(thread_ids: tuple[str, ...], is_all: bool, control: Connection) -> None:
    """Create a conversation for the Responses API from each of THREAD_IDS. The thread stays, with
    the same items. Prints the ids of each thread and its conversation on a line."""
    if is_all == bool(thread_ids):
        raise click.UsageError("Give either thread ids or --all.")

    async def work(server: Server) -> None:
        ids = thread_ids
        if is_all:
            request = thread_service_pb2.ListThreadsRequest(page_size=100)
            listed = list_objects(server.threads.ListThreads, request, "threads")
            ids = tuple([thread.id async for thread in listed])
        for thread_id in ids:
            migration = thread_service_pb2.MigrateThreadRequest(
                thread_id=thread_id, request_id=f"migrate {thread_id}"
            )
            response = await server.threads.MigrateThread(migration, timeout=CALL_TIMEOUT_S)
            click.echo(f"{thread_id} {response.conversation.id}")

    call_control(control, work)


async def _show_progress(steps: AsyncIterator[str], total: int | None) -> None:
    """Iterate over the steps, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        async for _ in steps:
            pass
        return
    with click.progressbar(length=total or 0, file=sys.stderr, show_pos=True) as bar:
        async for step in steps:
            bar.label = step
            bar.length = max(bar.length or 0, bar.pos + 1)
            bar.update(1)


def _convert_all(export: Export, translator: Translator) -> None:
    """Convert everything, to find what is invalid or skipped. Raises click.ClickException."""
    kinds = (export.stores, export.assistants, export.threads)
    for obj in (read(location) for locations in kinds for location in locations.values()):
        with explain_object_errors(obj):
            _convert(obj, export, translator)


def _convert(obj: Json, export: Export, translator: Translator) -> None:
    if obj["object"] == "vector_store":
        if translator.store(obj) is not None:
            for file in export.files_of(obj["id"]):
                translator.store_file(file, obj["id"])
    elif obj["object"] == "assistant":
        translator.assistant(obj, "")
    else:
        translator.thread(obj)
        for message in export.messages_of(obj["id"]):
            translator.message(message)


def _parse_models(models: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
    """Return the model for all assistants (empty if not given), and new names by old names."""
    renamed = dict(each.split("=", 1) for each in models if "=" in each)
    defaults = [each for each in models if "=" not in each]
    if len(defaults) > 1:
        raise click.UsageError("--model without OLD= applies to all assistants: give it once.")
    return "".join(defaults), renamed


def _sibling(export: Path, suffix: str) -> Path:
    """The path of the export with a suffix added to its name."""
    path = export.resolve() if export.name in ("", "..") else export
    return path.with_name(path.name + suffix)


def _counts(export: Export) -> Mapping[str, int]:
    return {
        "assistants": len(export.assistants),
        "threads": len(export.threads),
        "messages": export.num_messages,
        "files": len(export.files),
        "vector stores": len(export.stores),
    }


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _report_skipped(skipped: Counter[str], export: Export) -> None:
    skipped["lines with other objects"] += export.num_others
    skipped["messages whose thread is not in the export"] += export.num_orphan_messages
    skipped["files whose vector store is not in the export"] += export.num_orphan_files
    for description, count in sorted(skipped.items()):
        if count:
            click.echo(f"skipped: {count} {description}", err=True)
