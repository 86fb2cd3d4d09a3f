"""`corral doctor` with engines of others: what each URL is, and why one cannot be used."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from corral_cli.__main__ import cli
from corral_cli.doctor.findings import Finding, Level
from corral_cli.doctor.upstream_checks import check_upstreams
from inference_svc.config import InferenceSettings
from svc_kit.settings.groups import load_settings
from tests.support.byte_engine import ByteEngine
from tests.support.certificates import Authority


async def check(*urls: str, **settings: Any) -> list[Finding]:
    """What is found of the upstream "qwen"."""
    upstream = {"urls": list(urls), "tokenizer": "bundled", **settings}
    loaded = load_settings(InferenceSettings, overrides={"upstreams": {"qwen": upstream}})
    return await asyncio.to_thread(lambda: list(check_upstreams(loaded, datetime.now(UTC))))


@asynccontextmanager
async def running(
    kind: str, tls: ssl.SSLContext | None = None, **changes: Any
) -> AsyncIterator[ByteEngine]:
    engine = ByteEngine(b"a", kind, **changes)
    await engine.start(ssl=tls)
    try:
        yield engine
    finally:
        await engine.stop()


@pytest.mark.parametrize(
    ("kind", "settings", "found"),
    [
        ("vllm", {}, "vllm 0.33.0"),
        ("sglang", {"kind": "sglang"}, "sglang 0.5.23"),
        ("llama_server", {}, "llama_server b1"),
        ("openai", {"tokenizer": ""}, "openai"),
    ],
)
async def test_the_kind_that_answers_is_named(
    kind: str, settings: Mapping[str, Any], found: str
) -> None:
    async with running(kind) as engine:
        (finding,) = await check(engine.url, **settings)
    message = f"upstreams.qwen: {engine.url} is {found} with the model bytes"
    assert finding == Finding("engines", Level.OK, message)


async def test_an_engine_that_is_away_is_a_warning() -> None:
    """Of two URLs, each has its finding."""
    async with running("vllm") as engine:
        away, there = await check("http://127.0.0.1:9", engine.url)
    assert (away.level, there.level) == (Level.WARNING, Level.OK)
    assert "upstreams.qwen: http://127.0.0.1:9: it cannot be reached" in away.message
    assert "start it" in away.remedy


UNUSABLE: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "another kind": ("vllm", {}, {"kind": "sglang"}, "it answers as vllm, not as sglang"),
    "another model": ("vllm", {}, {"model": "big"}, "it serves no model 'big', but ['bytes']"),
    "a refused key": (
        "vllm",
        {"routes": {"/v1/models": lambda: (401, {"error": "no key"})}},
        {},
        "status 401",
    ),
    "no engine": ("openai", {}, {}, "it answers as none of llama_server"),
    "no API": ("llama_server", {"routes": {"/v1/models": lambda: (404, {})}}, {}, "none of"),
}


@pytest.mark.parametrize(
    ("kind", "changes", "settings", "text"), UNUSABLE.values(), ids=list(UNUSABLE)
)
async def test_an_engine_that_can_never_be_used_is_an_error(
    kind: str, changes: dict[str, Any], settings: dict[str, Any], text: str
) -> None:
    async with running(kind, **changes) as engine:
        (finding,) = await check(engine.url, **settings)
    assert finding.level is Level.ERROR
    assert text in finding.message
    assert finding.remedy == "correct `upstreams.qwen` in [inference]"


async def test_adapters_that_an_engine_lacks_are_a_warning() -> None:
    async with running("vllm") as engine:
        (finding,) = await check(engine.url, adapters=["sql"])
    assert finding.level is Level.WARNING
    assert finding.message.endswith("without the adapters sql")


CERTIFICATES: dict[str, tuple[str, timedelta, tuple[Level, ...], str]] = {
    "valid": ("localhost", timedelta(days=90, hours=1), (Level.OK, Level.OK), "for 90 days"),
    "expires soon": ("localhost", timedelta(days=3, hours=1), (Level.OK, Level.WARNING), "3 days"),
    "expired": ("localhost", timedelta(days=-1), (Level.ERROR,), "certificate has expired"),
    "another name": ("engine.test", timedelta(days=90), (Level.ERROR,), "Hostname mismatch"),
}


@pytest.mark.parametrize(
    ("name", "valid_for", "levels", "text"), CERTIFICATES.values(), ids=list(CERTIFICATES)
)
async def test_the_certificate_of_an_engine_is_looked_at(
    tmp_path: Path, name: str, valid_for: timedelta, levels: tuple[Level, ...], text: str
) -> None:
    authority = Authority()
    files = authority.issue(name, valid_for=valid_for).write(tmp_path, "engine")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    async with running("vllm", tls=context) as engine:
        url = engine.url.replace("127.0.0.1", "localhost")
        findings = await check(url, tls={"ca_file": tmp_path / "ca.crt"})
    assert tuple(each.level for each in findings) == levels
    assert text in findings[-1].message


@pytest.mark.parametrize("command", [["doctor"], ["config", "check"]])
def test_a_key_that_others_can_read_is_refused_in_the_same_words(
    tmp_path: Path, command: list[str]
) -> None:
    key, config = tmp_path / "key", tmp_path / "corral.toml"
    key.write_text("secret")
    key.chmod(0o644)
    config.write_text(
        f'[inference.upstreams.qwen]\nurls = ["http://127.0.0.1:9"]\nkey_file = "{key}"\n'
    )
    flags = ["--config", str(config), "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(cli, [*command, *flags])
    assert result.exit_code == 1
    text = f"{key} is accessible to other users; run: chmod 600 {key}"
    assert text in f"{result.output} {result.exception}"
