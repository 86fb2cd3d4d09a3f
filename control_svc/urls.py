"""The URLs of the database and of the bucket in the settings. ValueErrors say what is allowed."""

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

_DRIVERS: Final = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_BUCKET_OPTIONS: Final = {"endpoint", "region"}
_DATABASE_FORMS: Final = "use postgresql://user:password@host/name or sqlite:///FILE"


def parse_database_url(text: str) -> sa.URL:
    """Parse the URL of a database, for its driver. Raises ValueError, without secrets."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(f"database_url is not a valid URL: {_DATABASE_FORMS}") from None
    kind = url.drivername.partition("+")[0]
    if kind not in _DRIVERS or (kind == "sqlite" and not url.database):
        raise ValueError(f"database_url is of kind '{kind}': {_DATABASE_FORMS}")
    allowed = set() if kind == "sqlite" else {"host", "port", "sslmode"}
    if unknown := sorted(set(url.query) - allowed):
        names = ", ".join(sorted(allowed)) or "none"
        raise ValueError(
            f"database_url has unknown options: {', '.join(unknown)}; allowed are {names}"
        )
    mode = url.query.get("sslmode")
    if mode is not None and mode not in _SSL_MODES:
        raise ValueError(f"sslmode in database_url must be one of {', '.join(_SSL_MODES)}")
    if mode is not None:  # the option of libpq under the name that asyncpg has for it
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url.set(drivername=_DRIVERS[kind])


class BucketUrl(NamedTuple):
    bucket: str
    path: str
    """The prefix of all keys, with slashes; empty without one."""
    options: dict[str, str]
    """`endpoint` and `region`, where they are given."""


def parse_bucket_url(text: str) -> BucketUrl:
    """Parse s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Raises ValueError."""
    url = urlsplit(text)
    options = dict(parse_qsl(url.query))
    if url.scheme != "s3" or not url.hostname:
        raise ValueError("blobs_url is not valid: use s3://BUCKET/PREFIX?endpoint=URL")
    if unknown := sorted(options.keys() - _BUCKET_OPTIONS):
        raise ValueError(
            f"blobs_url has unknown options: {', '.join(unknown)}; allowed are endpoint and region"
        )
    endpoint = urlsplit(options.get("endpoint", "https://unset"))
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        raise ValueError("the endpoint in blobs_url is not valid: use http://HOST or https://HOST")
    return BucketUrl(url.hostname, url.path, options)
