"""A real Prometheus, of the Debian package."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from svc_kit.network import Address, open_listener
from tests.support.debian_packages import find_program
from tests.support.processes import Program

PACKAGE: Final = "prometheus"


def promtool(*arguments: str | Path, folder: Path | None = None, text: str = "") -> str:
    """Run promtool and return its output. Raises AssertionError unless it succeeds."""
    command: Sequence[str | Path] = [find_program("promtool", PACKAGE), *arguments]
    done = subprocess.run(
        command, cwd=folder, input=text, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Prometheus:
    client: httpx.Client

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API. Raises AssertionError with its error."""
        answer = self.client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def wait(self, condition: Callable[[], bool]) -> None:
        """Poll until a condition holds; pytest's timeout ends it otherwise."""
        while not condition():
            pass


@contextmanager
def run_prometheus(folder: Path, targets: Sequence[str], shipped: Path) -> Iterator[Prometheus]:
    """Run with a configuration of `monitoring/`, but scrape these targets, every half second."""
    settings = yaml.safe_load(shipped.read_text("utf-8"))
    settings["global"] |= {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    settings["rule_files"] = [str(shipped.parent / name) for name in settings["rule_files"]]
    [job] = settings["scrape_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    configuration = folder / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(settings), "utf-8")
    with open_listener(Address("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command: list[str | Path] = [
        find_program("prometheus", PACKAGE),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    with Program(command, environment={}, directory=folder) as program:
        program.wait_for_line(r"Server is ready to receive web requests")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield Prometheus(client)
