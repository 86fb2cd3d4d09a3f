"""`corral batch`: submit, list, watch, cancel and download batches."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import click
import orjson
from corral.control.v1 import batch_pb2, file_pb2
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1 import file_service_pb2 as files_pb
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub

from corral_cli.connection import CONNECT_PATIENCE_S, CONTROL, explain_failures, target_option
from svc_kit.errors import Unavailable
from svc_kit.local_files import atomic_file
from svc_kit.rpc.client import open_channel, translate_errors

if TYPE_CHECKING:
    from corral.control.v1.batch_service_pb2_grpc import BatchServiceAsyncStub
    from corral.control.v1.file_service_pb2_grpc import FileServiceAsyncStub


def state_of(batch: batch_pb2.Batch) -> str:
    """Its state in words."""
    return batch_pb2.Batch.State.Name(batch.state).removeprefix("STATE_").lower().replace("_", " ")


def describe(batch: batch_pb2.Batch) -> str:
    """One batch in one line."""
    counts, usage = batch.request_counts, batch.usage
    facts = [state_of(batch), f"{counts.completed} of {counts.total} completed"]
    if counts.failed:
        facts.append(f"{counts.failed} failed")
    if usage.input_tokens or usage.output_tokens:
        facts.append(f"{usage.input_tokens} tokens in, {usage.output_tokens} out")
    return f"{batch.id}    {batch.endpoint}, {', '.join(facts)}"


class Progress:
    """Shows a batch while it changes, on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._state: batch_pb2.Batch.State | None = None
        self._is_waiting = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.render_finish()

    def show(self, batch: batch_pb2.Batch) -> None:
        """The batch as it is now."""
        self._is_waiting = False
        counts = batch.request_counts
        if not sys.stderr.isatty():
            if batch.state != self._state:
                click.echo(f"{state_of(batch)} {counts.completed}/{counts.total}", err=True)
        elif counts.total:
            self._draw(batch, counts.completed + counts.failed, counts.total)
        self._state = batch.state

    @property
    def has_begun(self) -> bool:
        """Whether anything was shown."""
        return self._state is not None

    def wait(self, target: str) -> None:
        """Print once that the server does not answer."""
        if self._is_waiting:
            return
        self._is_waiting = True
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None
        click.echo(f"waiting for the server at {target}", err=True)

    def _draw(self, batch: batch_pb2.Batch, ended: int, total: int) -> None:
        if self._bar is None:
            self._bar = click.progressbar(length=total, file=sys.stderr, show_pos=True)
        self._bar.label = state_of(batch)
        self._bar.update(ended - self._bar.pos)
        self._bar.render_progress()


ResultT = TypeVar("ResultT")
_CHUNK_BYTES: Final = 256 * 1024
_RETRY_S: Final = 1.0


class Server(NamedTuple):
    """What a command talks to."""

    target: str
    batches: "BatchServiceAsyncStub"
    files: "FileServiceAsyncStub"


@click.group("batch")
@target_option(CONTROL)
@click.option("--api-key", envvar="CORRAL_API_KEY", help="The key, where the server asks for one.")
@click.pass_context
def batch(context: click.Context, target: str, api_key: str | None) -> None:
    """Carry out files of requests when there is time."""
    context.obj = (target, api_key)


@batch.command("submit")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--endpoint", help="The url of its lines. Default: that of the first one.")
@click.option("--watch", is_flag=True, help="Show how far it is, until it has ended.")
@click.pass_obj
def submit(
    connection: tuple[str, str | None], file: Path, endpoint: str | None, watch: bool
) -> None:
    """Begin a batch with the requests in FILE, a JSON object a line."""
    url = endpoint or _endpoint_of(file)

    async def begin(server: Server) -> batch_pb2.Batch:
        requests = _upload(file)
        sent = (await server.files.CreateFile(requests)).file
        request = pb.CreateBatchRequest(input_file_id=sent.id, endpoint=url)
        return (await server.batches.CreateBatch(request, timeout=CONNECT_PATIENCE_S)).batch

    started = _call(connection, begin)
    click.echo(started.id)
    if watch:
        _finish(_call(connection, lambda server: _follow(server, started.id)))


@batch.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100))
@click.pass_obj
def list_batches(connection: tuple[str, str | None], limit: int) -> None:
    """Print the last batches with their states and counts, newest first."""

    async def get(server: Server) -> pb.ListBatchesResponse:
        request = pb.ListBatchesRequest(page_size=limit)
        return await server.batches.ListBatches(request, timeout=CONNECT_PATIENCE_S)

    for each in _call(connection, get).batches:
        click.echo(describe(each))


@batch.command("watch")
@click.argument("batch_id")
@click.pass_obj
def watch_batch(connection: tuple[str, str | None], batch_id: str) -> None:
    """Show how far BATCH_ID is, until it has ended."""
    _finish(_call(connection, lambda server: _follow(server, batch_id)))


@batch.command("cancel")
@click.argument("batch_id")
@click.pass_obj
def cancel(connection: tuple[str, str | None], batch_id: str) -> None:
    """Give BATCH_ID up; what has run is kept."""

    async def give_up(server: Server) -> batch_pb2.Batch:
        request = pb.CancelBatchRequest(batch_id=batch_id)
        return (await server.batches.CancelBatch(request, timeout=CONNECT_PATIENCE_S)).batch

    click.echo(describe(_call(connection, give_up)))


@batch.command("download")
@click.argument("batch_id")
@click.option("--errors", is_flag=True, help="The lines that failed, instead of the answers.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.pass_obj
def download(connection: tuple[str, str | None], batch_id: str, errors: bool, output: Path) -> None:
    """Write the answers of BATCH_ID to a file, which is whole or not there."""

    async def fetch(server: Server) -> None:
        request = pb.GetBatchRequest(batch_id=batch_id)
        found = (await server.batches.GetBatch(request, timeout=CONNECT_PATIENCE_S)).batch
        file_id = found.error_file_id if errors else found.output_file_id
        if not file_id:
            what = "failed lines" if errors else "answers"
            raise click.ClickException(f"{batch_id} is {state_of(found)} and has no {what}")
        with atomic_file(output) as written:
            wanted = files_pb.DownloadFileRequest(file_id=file_id)
            async for piece in server.files.DownloadFile(wanted):
                written.write(piece.chunk)

    _call(connection, fetch)


async def _upload(file: Path) -> AsyncIterator[files_pb.CreateFileRequest]:
    header = file_pb2.FileHeader(filename=file.name, purpose=file_pb2.FILE_PURPOSE_BATCH)
    yield files_pb.CreateFileRequest(header=header)
    with file.open("rb") as opened:
        while chunk := await asyncio.to_thread(opened.read, _CHUNK_BYTES):
            yield files_pb.CreateFileRequest(chunk=chunk)


def _endpoint_of(file: Path) -> str:
    """What the first line names. Raises click.ClickException: nothing is sent of such a file."""
    with file.open("rb") as opened:
        first = next((line for line in opened if line.strip()), b"")
    try:
        url = orjson.loads(first).get("url")
    except (orjson.JSONDecodeError, AttributeError):
        url = None
    if not url or not isinstance(url, str):
        raise click.ClickException(f'the first line of {file} is no request with a "url"')
    return url


async def _follow(server: Server, batch_id: str) -> batch_pb2.Batch:
    """Show a batch until it has ended; a server that goes away meanwhile is waited for. Raises
    `Unavailable` where it was not there to begin with."""
    with Progress() as progress:
        while True:
            try:
                with translate_errors(server.target):
                    request = pb.WatchBatchRequest(batch_id=batch_id)
                    async for answer in server.batches.WatchBatch(request):
                        progress.show(answer.batch)
                        last = answer.batch
                    return last
            except Unavailable as error:
                if not progress.has_begun:
                    raise
                progress.wait(server.target)
                await asyncio.sleep(error.retry_after or _RETRY_S)


def _finish(ended: batch_pb2.Batch) -> None:
    """Print how a batch ended. Raises click.ClickException if its file was invalid."""
    for error in ended.errors:
        place = f"line {error.line}: " if error.line else ""
        click.echo(f"{place}{error.code}: {error.message}", err=True)
    if ended.state == batch_pb2.Batch.STATE_FAILED:
        raise click.ClickException(f"{ended.id} failed")
    click.echo(describe(ended))


def _call(
    connection: tuple[str, str | None], ask: Callable[[Server], Awaitable[ResultT]]
) -> ResultT:
    """Ask the server one thing. Raises click.ClickException with its error."""

    async def connected() -> ResultT:
        target, api_key = connection
        async with open_channel(target, token=api_key) as channel:
            with explain_failures(target):
                server = Server(target, BatchServiceStub(channel), FileServiceStub(channel))
                return await ask(server)

    work: Coroutine[Any, Any, ResultT] = connected()
    return asyncio.run(work)
