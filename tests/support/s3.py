"""A bucket on a server that speaks S3, which can be stopped and started."""

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
    """An empty bucket."""

    endpoint: str
    client: Any
    """Boto's, for what we do not do ourselves."""

    def url(self, prefix: str) -> str:
        """As the settings have it."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def unfinished(self) -> list[Any]:
        """Uploads in parts that were neither completed nor aborted."""
        uploads: list[Any] = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return uploads


@contextlib.contextmanager
def a_bucket() -> Iterator[Bucket]:
    """A bucket on a server of its own."""
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
