"""`corral adapters add|list|remove` against a real control service."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from corral.control.v1 import adapter_pb2

from corral_cli.adapters import adapters
from tests.support.control import RunningControl, run_control
from tests.support.registry import Registry, adapter_bytes


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[RunningControl]:
    async with run_control(tmp_path) as running:
        yield running


async def run(control: RunningControl, *arguments: str | Path) -> Result:
    words = [*map(str, arguments), "--control", control.target]
    return await asyncio.to_thread(CliRunner().invoke, adapters, words)


async def report_state(registry: Registry, **fields: str) -> None:
    """Report the state of the adapter as a frontend does, once it is registered."""
    while not (adapters := (await registry.call("ListAdapters")).adapters):
        pass
    adapter = adapters[0]
    about = {"adapter_id": adapter.id, "project": "default", "sha256": adapter.sha256}
    state = "STATE_FAILED" if fields else "STATE_READY"
    report = adapter_pb2.AdapterReport(**about, state=state, **fields)  # type: ignore[arg-type]  # texts
    about = {"frontend": "f", "address": "host:1", "revision": "1000"}
    await registry.call("ReportAdapters", reports=[report], **about)


async def test_a_file_is_added_listed_and_removed(control: RunningControl, tmp_path: Path) -> None:
    """`add` waits until a server has loaded it."""
    (tmp_path / "voice.gguf").write_bytes(adapter_bytes())
    registry = Registry.of(control.client, control.service_metadata)
    added, _ = await asyncio.gather(
        run(control, "add", "voice", tmp_path / "voice.gguf", "--scale", "0.5", "--model", "tiny"),
        report_state(registry),
    )
    made = await registry.get("voice")
    listed = await run(control, "list")
    removed = await run(control, "remove", "voice")
    missing = await run(control, "remove", "voice")

    line = (
        f"voice    {made.id}, for tiny, ready, rank 8, scale 0.5, 0.0 MB, "
        f"SHA-256 {made.sha256[:12]}\n"
    )
    assert added.output == listed.output == line
    assert removed.output == f"voice ({made.id}) is deleted\n"
    assert (missing.exit_code, missing.output) == (
        1, "Error: The adapter 'voice' does not exist.\n"
    )  # fmt: skip


async def test_a_problem_of_a_server_is_printed_with_its_address(
    control: RunningControl, tmp_path: Path
) -> None:
    """A file that is not an adapter is refused immediately."""
    good, bad = tmp_path / "voice.gguf", tmp_path / "bad.gguf"
    good.write_bytes(adapter_bytes())
    bad.write_bytes(b"not a model")
    refused = await run(control, "add", "voice", bad)
    added, _ = await asyncio.gather(
        run(control, "add", "voice", good),
        report_state(
            Registry.of(control.client, control.service_metadata),
            reason="X",
            problem="it does not fit",
        ),
    )

    assert refused.exit_code == 1
    assert "not a GGUF file" in refused.output
    assert "for the first model, failed, rank 8, scale 1" in added.output
    assert added.output.endswith("\n    host:1: it does not fit\n")
