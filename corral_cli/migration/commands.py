"""`corral export assistants`, `corral import assistants` and `corral threads migrate`."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import click
from corral.control.v1 import thread_service_pb2

from corral_cli.adapter_registry import control_options
from corral_cli.migration.export_file import Export, Json, look_through, naming, read
from corral_cli.migration.exporter import Exporter
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.importer import Importer
from corral_cli.migration.server import CALL_S, Server, every, with_server
from corral_cli.migration.translator import Translator
from svc_kit.local_files import atomic_file


@click.group("export")
def export_group() -> None:
    """Write what a server keeps to a file."""


@click.group("import")
def import_group() -> None:
    """Bring what another server kept."""


@click.group("threads")
def threads() -> None:
    """Threads of the Assistants API."""


@export_group.command("assistants")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--bytes/--no-bytes",
    "with_bytes",
    default=True,
    help="Whether the bytes of files are written too.",
)
@control_options
def export_assistants(file: Path, with_bytes: bool, control: str, api_key: str | None) -> None:
    """Write assistants, threads, messages, vector stores and their files to FILE, a JSON object a
    line, as OpenAI writes them.

    The bytes of files go into the folder FILE.files, each under the file's id; those that are there
    are not fetched again.
    """

    async def work(server: Server) -> Mapping[str, int]:
        with atomic_file(file) as written:
            exporter = Exporter(server, written, _beside(file, ".files") if with_bytes else None)
            await _shown(exporter.steps(), None)
        return exporter.counts

    click.echo(f"{file}    {_summed(with_server(control, api_key, work))}")


@import_group.command("assistants")
@click.argument("export", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--model",
    "models",
    multiple=True,
    help="A model here, for every assistant, or THERE=HERE for those of one. Default: their own.",
)
@click.option(
    "--search/--no-search",
    default=True,
    help="Whether files can be searched, and vector stores are brought; that needs an embedding "
    "model here.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be brought and left out.")
@click.option(
    "--id-map",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where old and new ids are kept. Default: EXPORT with .ids behind its name.",
)
@control_options
def import_assistants(
    export: Path,
    models: tuple[str, ...],
    dry_run: bool,
    search: bool,
    id_map: Path | None,
    control: str,
    api_key: str | None,
) -> None:
    """Bring assistants, threads, messages, vector stores and their files from EXPORT, a file of
    JSON lines or a folder of them. What is here already is not brought again.

    The bytes of files are taken from the folder EXPORT.files, where each has its id as its name.
    """
    found = look_through(export)
    default, names = _models(models)
    if dry_run:
        translator = Translator(
            names,
            default,
            lambda old: old if old in found.files or old in found.stores else None,
            with_search=search,
        )
        _rehearse(found, translator)
        click.echo(f"would bring {_summed(_counts(found))}")
        _report_left_out(translator.left_out, found)
        return

    async def work(server: Server) -> tuple[Mapping[str, int], Translator]:
        with IdMap(id_map or _beside(export, ".ids"), control) as ids:
            translator = Translator(names, default, ids.get, with_search=search)
            importer = Importer(server, found, ids, translator, _beside(export, ".files"))
            kinds = (found.files, found.stores, found.assistants, found.threads)
            total = sum(map(len, kinds))
            await _shown(importer.steps(), total)
        return importer.brought, translator

    brought, translator = with_server(control, api_key, work)
    click.echo(f"brought {_summed(brought)}")
    _report_left_out(translator.left_out, found)


@threads.command("migrate")
@click.argument("thread_ids", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every thread of the project.")
@control_options
def migrate(thread_ids: tuple[str, ...], is_all: bool, control: str, api_key: str | None) -> None:
    """Make a conversation of each of THREAD_IDS, for the Responses API to go on from. The thread
    stays; both have the same items. Prints the thread and its conversation, a pair a line."""
    if is_all == bool(thread_ids):
        raise click.UsageError("Name threads, or say --all.")

    async def work(server: Server) -> None:
        ids = thread_ids
        if is_all:
            request = thread_service_pb2.ListThreadsRequest(page_size=100)
            found = every(server.threads.ListThreads, request, "threads")
            ids = tuple([thread.id async for thread in found])
        for thread_id in ids:
            wanted = thread_service_pb2.MigrateThreadRequest(
                thread_id=thread_id, request_id=f"migrate {thread_id}"
            )
            answer = await server.threads.MigrateThread(wanted, timeout=CALL_S)
            click.echo(f"{thread_id} {answer.conversation.id}")

    with_server(control, api_key, work)


async def _shown(steps: AsyncIterator[str], total: int | None) -> None:
    """Take the steps, with a bar on a terminal."""
    if not sys.stderr.isatty():
        async for _ in steps:
            pass
        return
    with click.progressbar(length=total or 0, file=sys.stderr, show_pos=True) as bar:
        async for step in steps:
            bar.label = step
            bar.length = max(bar.length or 0, bar.pos + 1)
            bar.update(1)


def _rehearse(export: Export, translator: Translator) -> None:
    """Translate everything, for what is wrong to show. Raises click.ClickException."""
    kinds = (export.stores, export.assistants, export.threads)
    for found in (read(place) for places in kinds for place in places.values()):
        with naming(found):
            if found["object"] == "vector_store":
                _rehearse_store(found, export, translator)
            elif found["object"] == "assistant":
                translator.assistant(found, "")
            else:
                translator.thread(found)
                for message in export.messages_of(found["id"]):
                    translator.message(message)


def _rehearse_store(found: Json, export: Export, translator: Translator) -> None:
    if translator.store(found) is not None:
        for file in export.files_of(found["id"]):
            translator.store_file(file, found["id"])


def _models(models: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
    """The model for all, empty for none, and those for some."""
    named = dict(each.split("=", 1) for each in models if "=" in each)
    others = [each for each in models if "=" not in each]
    if len(others) > 1:
        raise click.UsageError("--model without THERE= is for every assistant: say it once.")
    return "".join(others), named


def _beside(export: Path, suffix: str) -> Path:
    named = export.resolve() if export.name in ("", "..") else export
    return named.with_name(named.name + suffix)


def _counts(export: Export) -> Mapping[str, int]:
    return {
        "assistants": len(export.assistants),
        "threads": len(export.threads),
        "messages": export.num_messages,
        "files": len(export.files),
        "vector stores": len(export.stores),
    }


def _summed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _report_left_out(left_out: Counter[str], export: Export) -> None:
    left_out["lines with other objects"] += export.num_others
    left_out["messages without their thread"] += export.num_lost
    left_out["files of vector stores that are not there"] += export.num_lost_files
    for what, count in sorted(left_out.items()):
        if count:
            click.echo(f"left out: {count} {what}", err=True)
