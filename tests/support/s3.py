"""A bucket on an S3 server."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
from pydantic import SecretStr

from control_svc.blobs.s3 import Credentials

_ROOT = Path(__file__).resolve().parents[2]
BUCKET = "corral-test"
REGION = "us-east-1"
KEY_ID, SECRET = "somebody", "their-secret"
CREDENTIALS = Credentials(SecretStr(KEY_ID), SecretStr(SECRET))


@dataclass(frozen=True)
class Bucket:
    endpoint: str
    client: Any
    """The client of boto3."""
    process: "subprocess.Popen[str]"
    """The server."""

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def unfinished_uploads(self) -> list[Any]:
        """Multipart uploads that were neither completed nor aborted."""
        uploads: list[Any] = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return uploads

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the server hang."""
        self.process.send_signal(signal.SIGSTOP)
        yield
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def run_s3_bucket(host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[Bucket]:
    """Run a server at an address; `prefix` are words before its command."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.support.s3_server", host],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        text=True,
        start_new_session=True,  # the kernel hangs up an orphaned group with a stopped process
    )
    try:
        port = process.stdout.readline().strip() if process.stdout else ""
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket=BUCKET)
        yield Bucket(endpoint, client, process)
        client.close()
    finally:
        process.kill()
        process.communicate()
