"""`corral batch`: submit, list, watch, cancel and download batches."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Self

import click
import grpc.aio
import orjson
from corral.control.v1 import batch_pb2, file_pb2
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1 import file_service_pb2 as files_pb
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub

from corral_cli.access import control_options
from corral_cli.connection import (
    CALL_TIMEOUT_S,
    Connection,
)
from corral_cli.output import echo, echo_line, json_option, print_list, read_chunks, transfer_bar
from svc_kit.errors import Unavailable
from svc_kit.local_files import atomic_file
from svc_kit.rpc.client import translate_errors


def format_state(batch: batch_pb2.Batch) -> str:
    return batch_pb2.Batch.State.Name(batch.state).removeprefix("STATE_").lower().replace("_", " ")


def describe(batch: batch_pb2.Batch) -> str:
    """Format a batch as one line."""
    counts, usage = batch.request_counts, batch.usage
    facts = [format_state(batch), f"{counts.completed} of {counts.total} completed"]
    if counts.failed:
        facts.append(f"{counts.failed} failed")
    if usage.input_tokens or usage.output_tokens:
        facts.append(f"{usage.input_tokens} tokens in, {usage.output_tokens} out")
    return f"{batch.id}    {batch.endpoint}, {', '.join(facts)}"


class Progress:
    """Shows the progress of a batch on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._state: batch_pb2.Batch.State | None = None
        self._is_disconnected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.render_finish()

    def show(self, batch: batch_pb2.Batch) -> None:
        self._is_disconnected = False
        counts = batch.request_counts
        if not sys.stderr.isatty():
            if batch.state != self._state:
                echo_line(f"{format_state(batch)} {counts.completed}/{counts.total}", err=True)
        elif counts.total:
            self._draw(batch, counts.completed + counts.failed, counts.total)
        self._state = batch.state

    @property
    def has_started(self) -> bool:
        """Whether any state was shown."""
        return self._state is not None

    def show_disconnected(self, target: str) -> None:
        """Print that the server does not answer, once until the next `show`."""
        if self._is_disconnected:
            return
        self._is_disconnected = True
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None
        echo(f"waiting for the server at {target}", err=True)

    def _draw(self, batch: batch_pb2.Batch, finished: int, total: int) -> None:
        if self._bar is None:
            self._bar = click.progressbar(length=total, file=sys.stderr, show_pos=True)
        self._bar.label = format_state(batch)
        self._bar.update(finished - self._bar.pos)
        self._bar.render_progress()


_CHUNK_BYTES: Final = 256 * 1024
_RETRY_S: Final = 1.0


@click.group("batch")
def batch() -> None:
    """Run files of requests as batches, at low priority."""


@batch.command("submit")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--endpoint", help="Endpoint of its requests. Default: the url of the first line.")
@click.option("--watch", is_flag=True, help="Show the progress until the batch has finished.")
@control_options
def submit(control: Connection, file: Path, endpoint: str | None, watch: bool) -> None:
    """Create a batch from FILE, which has one request (a JSON object) per line."""
    url = endpoint or _first_url(file)

    async def create_batch(channel: grpc.aio.Channel) -> batch_pb2.Batch:
        uploaded = (await FileServiceStub(channel).CreateFile(_upload(file))).file
        request = pb.CreateBatchRequest(input_file_id=uploaded.id, endpoint=url)
        stub = BatchServiceStub(channel)
        return (await stub.CreateBatch(request, timeout=CALL_TIMEOUT_S)).batch

    created = control.run(create_batch)
    echo_line(created.id)
    if watch:
        _watch(control, created.id)


@batch.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100))
@json_option
@control_options
def list_batches(control: Connection, limit: int, as_json: bool) -> None:
    """List the latest batches with their states and counts, newest first."""
    request = pb.ListBatchesRequest(page_size=limit)
    page = control.call(request, pb.ListBatchesResponse)
    print_list(page.batches, as_json, lambda batches: map(describe, batches))


@batch.command("watch")
@click.argument("batch_id")
@control_options
def watch_batch(control: Connection, batch_id: str) -> None:
    """Show the progress of BATCH_ID until it has finished."""
    _watch(control, batch_id)


@batch.command("cancel")
@click.argument("batch_id")
@control_options
def cancel(control: Connection, batch_id: str) -> None:
    """Cancel BATCH_ID. The results so far are kept."""
    request = pb.CancelBatchRequest(batch_id=batch_id)
    reply = control.call(request, pb.CancelBatchResponse)
    echo_line(describe(reply.batch))


@batch.command("download")
@click.argument("batch_id")
@click.option("--errors", is_flag=True, help="Download the failed lines instead of the results.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@control_options
def download(control: Connection, batch_id: str, errors: bool, output: Path) -> None:
    """Write the results of BATCH_ID to a file. The file is written completely or not at all."""

    async def fetch(channel: grpc.aio.Channel) -> None:
        request = pb.GetBatchRequest(batch_id=batch_id)
        stub = BatchServiceStub(channel)
        batch = (await stub.GetBatch(request, timeout=CALL_TIMEOUT_S)).batch
        file_id = batch.error_file_id if errors else batch.output_file_id
        if not file_id:
            content = "failed lines" if errors else "answers"
            raise click.ClickException(f"{batch_id} is {format_state(batch)} and has no {content}")
        files = FileServiceStub(channel)
        file = (await files.GetFile(files_pb.GetFileRequest(file_id=file_id))).file
        with atomic_file(output) as target, transfer_bar(file.size_bytes, output.name) as bar:
            download = files_pb.DownloadFileRequest(file_id=file_id)
            async for response in files.DownloadFile(download):
                target.write(response.chunk)
                bar.update(len(response.chunk))

    control.run(fetch)


async def _upload(file: Path) -> AsyncIterator[files_pb.CreateFileRequest]:
    header = file_pb2.FileHeader(filename=file.name, purpose=file_pb2.FILE_PURPOSE_BATCH)
    yield files_pb.CreateFileRequest(header=header)
    async for chunk in read_chunks(file, _CHUNK_BYTES):
        yield files_pb.CreateFileRequest(chunk=chunk)


def _first_url(file: Path) -> str:
    """Return the url of the first request. Raises click.ClickException if it has none."""
    with file.open("rb") as source:
        first = next((line for line in source if line.strip()), b"")
    try:
        url = orjson.loads(first).get("url")
    except (orjson.JSONDecodeError, AttributeError):
        url = None
    if not url or not isinstance(url, str):
        raise click.ClickException(f'the first line of {file} is not a request with a "url"')
    return url


def _watch(control: Connection, batch_id: str) -> None:
    """Show a batch until it has finished, and print its result."""
    _report_result(control.run(lambda channel: _follow(channel, control.target, batch_id)))


async def _follow(channel: grpc.aio.Channel, target: str, batch_id: str) -> batch_pb2.Batch:
    """Show a batch until it has finished, and reconnect if the server becomes unavailable.

    Raises Unavailable if the first connection fails.
    """
    with Progress() as progress:
        while True:
            try:
                with translate_errors(target):
                    request = pb.WatchBatchRequest(batch_id=batch_id)
                    async for response in BatchServiceStub(channel).WatchBatch(request):
                        progress.show(response.batch)
                        latest = response.batch
                    return latest
            except Unavailable as error:
                if not progress.has_started:
                    raise
                progress.show_disconnected(target)
                await asyncio.sleep(error.retry_after or _RETRY_S)


def _report_result(batch: batch_pb2.Batch) -> None:
    """Print the result of a batch. Raises click.ClickException if its file was invalid."""
    for error in batch.errors:
        place = f"line {error.line}: " if error.line else ""
        echo_line(f"{place}{error.code}: {error.message}", err=True)
    if batch.state == batch_pb2.Batch.STATE_FAILED:
        raise click.ClickException(f"{batch.id} failed")
    echo_line(describe(batch))
