"""Network namespaces on a bridge, each with an address, whose links can be cut.

They need root, its right to create namespaces and mounts, and the commands of iproute2 and
util-linux: `may_isolate`.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

_NETWORK: Final = "198.18"
"""For tests of networks (RFC 2544); the third part of the addresses is this process's."""


@dataclass(frozen=True)
class Host:
    """A namespace; `prefix` are the words before a command that runs in it."""

    address: str
    prefix: Sequence[str]
    link: str
    bridge: str

    def cut(self) -> None:
        """Lose all packets from and to it."""
        _ip("link", "set", self.link, "nomaster")

    def mend(self) -> None:
        _ip("link", "set", self.link, "master", self.bridge)


@functools.cache
def may_isolate() -> bool:
    """Whether this process may create namespaces and mounts for all users."""
    if os.geteuid() != 0 or None in (shutil.which("ip"), shutil.which("unshare")):
        return False
    trial = ["unshare", "--net", "--time", "--mount", "--fork", "ip", "link", "set", "lo", "up"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


@contextmanager
def run_hosts(count: int) -> Iterator[list[Host]]:
    """Create the bridge and as many namespaces; this process reaches them, and they each other."""
    number = os.getpid() % 65_536
    bridge, network = f"ch{number}", f"{_NETWORK}.{number % 256}"
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{network}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        hosts = []
        for last in range(1, count + 1):
            name, link = f"{bridge}-{last}", f"{bridge}v{last}"
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", bridge, "up")
            for words in (
                ("addr", "add", f"{network}.{last}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", name, *words)
            hosts.append(Host(f"{network}.{last}", ("ip", "netns", "exec", name), link, bridge))
        yield hosts


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
