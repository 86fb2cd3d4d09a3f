"""The control service as the routes see it: typed calls, the caller's identity, a deadline."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc.aio
from corral.control.v1 import (
    batch_pb2,
    batch_service_pb2,
    file_pb2,
    file_service_pb2,
    upload_service_pb2,
)
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.upload_service_pb2_grpc import UploadServiceStub
from google.protobuf.message import Message

from gateway.auth import Caller, Credentials
from gateway.calls import StreamCall
from gateway.upload_call import UploadCall
from svc_kit.rpc.client import translate_errors

SERVICE: Final = "control"
UNARY_TIMEOUT_S: Final = 30.0
AnswerT = TypeVar("AnswerT")
FileSending = UploadCall[file_service_pb2.CreateFileRequest, file_service_pb2.CreateFileResponse]
PartSending = UploadCall[
    upload_service_pb2.AddUploadPartRequest, upload_service_pb2.AddUploadPartResponse
]
FileCalls = StreamCall[file_service_pb2.DownloadFileResponse]


class ControlCalls:
    """Calls as a caller. `transfer_timeout_s` is the deadline of calls that move bytes.

    Every method raises the service's DomainErrors, UpstreamUnavailable where there is none.
    """

    def __init__(self, credentials: Credentials, transfer_timeout_s: float) -> None:
        self._credentials = credentials
        self._transfer_timeout_s = transfer_timeout_s

    async def _ask(
        self,
        method: Callable[..., Awaitable[AnswerT]],
        request: Message,
        caller: Caller,
        *,
        timeout_s: float = UNARY_TIMEOUT_S,
    ) -> AnswerT:
        metadata = self._credentials.for_caller(caller)
        with translate_errors(SERVICE):
            return await method(request, timeout=timeout_s, metadata=metadata)


class ControlClient(ControlCalls):
    """Files, uploads and batches over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._files = FileServiceStub(channel)
        self._uploads = UploadServiceStub(channel)
        self._batches = BatchServiceStub(channel)

    def send_file(self, caller: Caller) -> FileSending:
        """Begin a new file."""
        metadata = self._credentials.for_caller(caller)
        call = self._files.CreateFile(timeout=self._transfer_timeout_s, metadata=metadata)
        return UploadCall(call, SERVICE)

    def read_file(
        self, file_id: str, caller: Caller, *, offset: int = 0, length: int | None = None
    ) -> FileCalls:
        """Begin to read a file."""
        request = file_service_pb2.DownloadFileRequest(
            file_id=file_id, offset=offset, length=length
        )
        metadata = self._credentials.for_caller(caller)
        call = self._files.DownloadFile(
            request, timeout=self._transfer_timeout_s, metadata=metadata
        )
        return StreamCall(call, SERVICE)

    async def get_file(self, file_id: str, caller: Caller) -> file_pb2.File:
        """One file."""
        request = file_service_pb2.GetFileRequest(file_id=file_id)
        answer = await self._ask(self._files.GetFile, request, caller)
        return answer.file

    async def list_files(
        self, request: file_service_pb2.ListFilesRequest, caller: Caller
    ) -> file_service_pb2.ListFilesResponse:
        """A page of files."""
        return await self._ask(self._files.ListFiles, request, caller)

    async def delete_file(self, file_id: str, caller: Caller) -> None:
        """Delete a file."""
        request = file_service_pb2.DeleteFileRequest(file_id=file_id)
        await self._ask(self._files.DeleteFile, request, caller)

    async def create_upload(
        self, request: upload_service_pb2.CreateUploadRequest, caller: Caller
    ) -> upload_service_pb2.Upload:
        """Announce a file that comes in parts."""
        answer = await self._ask(self._uploads.CreateUpload, request, caller)
        return answer.upload

    def send_part(self, caller: Caller) -> PartSending:
        """Begin a new part."""
        metadata = self._credentials.for_caller(caller)
        call = self._uploads.AddUploadPart(timeout=self._transfer_timeout_s, metadata=metadata)
        return UploadCall(call, SERVICE)

    async def complete_upload(
        self, request: upload_service_pb2.CompleteUploadRequest, caller: Caller
    ) -> upload_service_pb2.Upload:
        """Make a file of parts."""
        answer = await self._ask(
            self._uploads.CompleteUpload, request, caller, timeout_s=self._transfer_timeout_s
        )
        return answer.upload

    async def cancel_upload(self, upload_id: str, caller: Caller) -> upload_service_pb2.Upload:
        """Give an upload up."""
        request = upload_service_pb2.CancelUploadRequest(upload_id=upload_id)
        answer = await self._ask(self._uploads.CancelUpload, request, caller)
        return answer.upload

    async def create_batch(
        self, request: batch_service_pb2.CreateBatchRequest, caller: Caller
    ) -> batch_pb2.Batch:
        """Begin a batch."""
        answer = await self._ask(self._batches.CreateBatch, request, caller)
        return answer.batch

    async def get_batch(self, batch_id: str, caller: Caller) -> batch_pb2.Batch:
        """One batch."""
        request = batch_service_pb2.GetBatchRequest(batch_id=batch_id)
        answer = await self._ask(self._batches.GetBatch, request, caller)
        return answer.batch

    async def list_batches(
        self, request: batch_service_pb2.ListBatchesRequest, caller: Caller
    ) -> batch_service_pb2.ListBatchesResponse:
        """A page of batches."""
        return await self._ask(self._batches.ListBatches, request, caller)

    async def cancel_batch(self, batch_id: str, caller: Caller) -> batch_pb2.Batch:
        """Give a batch up."""
        request = batch_service_pb2.CancelBatchRequest(batch_id=batch_id)
        answer = await self._ask(self._batches.CancelBatch, request, caller)
        return answer.batch
