"""Runs Firefox for Playwright, between which this passes WebDriver BiDi on.

Playwright sends every new session a command that the Firefox of Debian does not know yet.
It is answered here; the colours are those that Firefox has.
"""

import asyncio
import json
import re
import shutil
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Browser, Playwright
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
UNKNOWN = "emulation.setMediaFeaturesOverride"


async def launch_firefox(playwright: Playwright) -> Browser:
    """Start this module in place of Firefox."""
    with TemporaryDirectory() as folder:
        launcher = Path(folder) / "firefox"
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
        launcher.chmod(0o755)
        return await playwright.firefox.launch(channel="moz-firefox", executable_path=launcher)


async def main(*arguments: str) -> int | None:
    """Run Firefox with Playwright's arguments. In what it prints, the port is that of the relay."""
    assert FIREFOX is not None
    firefox = await create_subprocess_exec(FIREFOX, *arguments, stderr=PIPE)
    assert firefox.stderr is not None
    relays = []
    async for line in firefox.stderr:
        if match := re.search(rb"WebDriver BiDi listening on (ws://\S+)", line):
            relays.append(await start_relay(match[1].decode()))
            port = relays[-1].sockets[0].getsockname()[1]
            line = line.replace(match[1], b"ws://127.0.0.1:%d" % port)
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
    return await firefox.wait()


async def start_relay(url: str) -> Server:
    """Accept connections for the one at `url`."""

    async def accept(client: ServerConnection) -> None:
        assert client.request is not None
        async with connect(url + client.request.path, max_size=None) as firefox:
            passing = [send_commands(client, firefox), send_answers(firefox, client)]
            await asyncio.wait(map(asyncio.ensure_future, passing), return_when="FIRST_COMPLETED")

    return await serve(accept, "127.0.0.1", 0, max_size=None)


async def send_commands(client: ServerConnection, firefox: ClientConnection) -> None:
    async for text in client:
        command = json.loads(text)
        if command["method"] == UNKNOWN:
            await client.send(json.dumps({"type": "success", "id": command["id"], "result": {}}))
        else:
            await firefox.send(text)


async def send_answers(firefox: ClientConnection, client: ServerConnection) -> None:
    async for text in firefox:
        await client.send(text)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
