"""A bucket on an S3 server."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
from pydantic import SecretStr

from control_svc.blobs.s3 import Credentials

_ROOT = Path(__file__).resolve().parents[2]
BUCKET = "corral-test"
REGION = "us-east-1"
CREDENTIALS = Credentials(SecretStr("somebody"), SecretStr("their-secret"))


@dataclass(frozen=True)
class Bucket:
    endpoint: str
    client: Any
    """The client of boto3."""

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def unfinished_uploads(self) -> list[Any]:
        """Multipart uploads that were neither completed nor aborted."""
        uploads: list[Any] = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return uploads


@contextlib.contextmanager
def run_s3_bucket() -> Iterator[Bucket]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3_server"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        text=True,
    )
    try:
        port = process.stdout.readline().strip() if process.stdout else ""
        endpoint = f"http://127.0.0.1:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id="somebody",
            aws_secret_access_key="their-secret",
        )
        client.create_bucket(Bucket=BUCKET)
        yield Bucket(endpoint, client)
        client.close()
    finally:
        process.kill()
        process.communicate()
