"""`corral export assistants`, `corral import assistants` and `corral threads migrate`."""

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import grpc.aio
from corral.control.v1 import thread_service_pb2
from corral.inference.v1 import inference_service_pb2

from corral_cli.access import access_options, control_options
from corral_cli.connection import Connection
from corral_cli.migration.export_file import Export, index_export
from corral_cli.migration.exporter import Exporter
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.importer import Importer
from corral_cli.migration.server import Server
from corral_cli.migration.translator import Translator
from corral_cli.output import echo, echo_line
from svc_kit.errors import ModelNotFound
from svc_kit.local_files import atomic_file
from svc_kit.rpc.client import translate_errors
from svc_kit.terminal import escape

_NAMED_IDS: Final = 10
"""Ids that are printed of each kind that is skipped."""


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

    async def work(channel: grpc.aio.Channel) -> Mapping[str, int]:
        with atomic_file(file) as output:
            exporter = Exporter(
                Server(channel), output, _sibling(file, ".files") if with_bytes else None
            )
            await _show_progress(exporter.steps(), None)
        return exporter.counts

    echo(f"{file}    {_format_counts(control.run(work))}")


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
@access_options
def import_assistants(
    export: Path,
    models: tuple[str, ...],
    dry_run: bool,
    search: bool,
    id_map: Path | None,
    connect: Callable[[str], Connection],
) -> None:
    """Import assistants, threads, messages, vector stores and their files from EXPORT, a file of
    JSON lines or a folder of such files. Objects that have been imported before are skipped.

    The contents of files are read from the folder EXPORT.files, each named by the file's id.
    """
    control = connect("control")
    index = index_export(export)
    default, names = _parse_models(models)

    async def work(channel: grpc.aio.Channel) -> tuple[Importer, Translator]:
        map_path = id_map or _sibling(export, ".ids")
        with IdMap(map_path, control.target, is_stored=not dry_run) as ids:
            translator = Translator(names, default, ids.get, with_search=search)
            importer = Importer(Server(channel), index, ids, translator, _sibling(export, ".files"))
            kinds = (index.files, index.stores, index.assistants, index.threads)
            await _show_progress(importer.steps(), sum(map(len, kinds)))
        return importer, translator

    importer, translator = control.run(work)
    echo(f"{'would import' if dry_run else 'imported'} {_format_counts(importer.counts)}")
    _report_skipped(translator.skipped, index)
    _report_models(translator.models, connect)
    for problem in importer.refused:
        echo_line(f"not imported: {problem}", err=True)
    if importer.refused:
        raise click.ClickException(
            f"{len(importer.refused)} objects are not valid. Correct them and import again:"
            " what has been imported is skipped."
        )


@threads.command("migrate")
@click.argument("thread_ids", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All threads of the project.")
@control_options
def migrate(thread_ids: tuple[str, ...], is_all: bool, control: Connection) -> None:
    """Create a conversation for the Responses API from each of THREAD_IDS. The thread stays, with
    the same items. Prints the ids of each thread and its conversation on a line."""
    if is_all == bool(thread_ids):
        raise click.UsageError("Give either thread ids or --all.")

    async def work(channel: grpc.aio.Channel) -> None:
        server, ids = Server(channel), thread_ids
        if is_all:
            request = thread_service_pb2.ListThreadsRequest(page_size=100)
            ids = tuple([each.id async for each in server.list_all(request, "threads")])
        for thread_id in ids:
            migration = thread_service_pb2.MigrateThreadRequest(
                thread_id=thread_id, request_id=f"migrate {thread_id}"
            )
            response = await server.call(migration, thread_service_pb2.MigrateThreadResponse)
            echo_line(f"{thread_id} {response.conversation.id}")

    control.run(work)


async def _show_progress(steps: AsyncIterator[str], total: int | None) -> None:
    """Iterate over the steps, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        async for _ in steps:
            pass
        return
    with click.progressbar(length=total or 0, file=sys.stderr, show_pos=True) as bar:
        async for step in steps:
            bar.label = escape(step)
            bar.length = max(bar.length or 0, bar.pos + 1)
            bar.update(1)


def _parse_models(models: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
    """Return the model for all assistants (empty if not given), and new names by old names."""
    renamed = dict(each.split("=", 1) for each in models if "=" in each)
    defaults = [each for each in models if "=" not in each]
    if len(defaults) > 1:
        raise click.UsageError("--model without OLD= applies to all assistants: give it once.")
    return "".join(defaults), renamed


def _sibling(export: Path, suffix: str) -> Path:
    path = export.resolve() if export.name in ("", "..") else export
    return path.with_name(path.name + suffix)


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _report_skipped(skipped: Mapping[str, Sequence[str]], export: Export) -> None:
    groups = {
        **skipped,
        "lines with other objects": export.others,
        "messages whose thread is not in the export": export.orphan_messages,
        "files whose vector store is not in the export": export.orphan_files,
    }
    for description, ids in sorted(groups.items()):
        if ids:
            echo_line(f"skipped: {len(ids)} {description}: {_format_ids(ids)}", err=True)


def _report_models(
    models: Mapping[str, Sequence[str]], connect: Callable[[str], Connection]
) -> None:
    """Name the models of assistants that the server does not have."""
    if not models:
        return

    async def find_missing(channel: grpc.aio.Channel) -> list[str]:
        server, missing = Server(channel), []
        for model in models:
            try:
                with translate_errors():
                    request = inference_service_pb2.GetModelRequest(model=model)
                    await server.call(request, inference_service_pb2.GetModelResponse)
            except ModelNotFound:
                missing.append(model)
        return missing

    try:
        missing = connect("inference").run(find_missing)
    except click.ClickException as error:
        echo_line(f"not checked whether the models exist: {error.message}", err=True)
        return
    for model in missing:
        ids = models[model]
        text = f"{len(ids)} assistants with the model {model!r}: {_format_ids(ids)}"
        echo_line(f"not served: {text}. Give another with --model {model}=NEW", err=True)


def _format_ids(ids: Sequence[str]) -> str:
    """The first ids, and how many more there are."""
    named = ", ".join(list(dict.fromkeys(ids))[:_NAMED_IDS])
    return named if len(set(ids)) <= _NAMED_IDS else f"{named}, ..."
