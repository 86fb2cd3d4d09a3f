"""`corral launch` in a process of its own, against a gateway with a fake inference service and a
real control service, and a stand-in for the programs that says how it was started."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from corral.control.v1 import limit_service_pb2

from corral_cli.launch.programs import PROGRAMS
from tests.support.control import RunningControl, run_control, write_service_token
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway, run_inference_service
from tests.support.operators import LimitPb, Operator

CONTEXT_TOKENS: Final = 64 * 1024
STAND_IN: Final = f"""#!{sys.executable}
import json, os, pathlib, sys
home = os.environ["HOME"]
texts = [*sys.argv[1:], *os.environ.values()]
paths = [text for text in texts if text.startswith(home + "/.config/") and os.path.isfile(text)]
files = {{path: pathlib.Path(path).read_text() for path in sorted(set(paths))}}
modes = sorted({{oct(os.stat(path).st_mode & 0o777) for path in files}})
started = {{"options": sys.argv[1:], "variables": dict(os.environ), "files": files, "modes": modes}}
print(json.dumps(started))
"""
OTHER_SERVERS: Final = {
    "ANTHROPIC_API_KEY": "of Anthropic",
    "CLAUDE_CODE_USE_BEDROCK": "1",
    "CORRAL_API_KEY": "of an administrator",
    "CORRAL_SERVICE_TOKEN_FILE": "/service-token",
    "OPENAI_API_KEY": "of OpenAI",
    "OPENAI_BASE_URL": "https://openai.example/v1",
}
"""Variables of a user who also works with other servers."""


@dataclass(frozen=True)
class Ended:
    """What a command printed, and its exit code; negative is the number of a signal."""

    output: str
    errors: str
    code: int

    @property
    def started(self) -> dict[str, Any]:
        """What the stand-in says."""
        found: dict[str, Any] = json.loads(self.output)
        return found


@dataclass(frozen=True)
class Launcher:
    """The command on a user's machine."""

    home: Path
    gateway: str
    control: RunningControl
    models: FakeInference

    @property
    def operator(self) -> Operator:
        return Operator.of(self.control)

    async def limits(self) -> list[LimitPb]:
        """Those of all keys."""
        request = limit_service_pb2.ListLimitsRequest()
        reply = await self.operator.call(self.operator.limits.ListLimits, request)
        return list(reply.limits)

    @property
    def places(self) -> list[str]:
        return ["--gateway", self.gateway, "--control", self.control.target]

    @property
    def token(self) -> list[str]:
        return ["--service-token-file", str(self.control.folder / "token")]

    def install(self, command: str, text: str = STAND_IN) -> Path:
        """Write an executable of this name into the user's folder of programs."""
        path = self.home / "bin" / command
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def environment(self, **variables: str) -> dict[str, str]:
        """That of the command, which the program inherits."""
        path = f"{self.home / 'bin'}{os.pathsep}{os.defpath}"
        return {"HOME": str(self.home), "PATH": path, "NO_PROXY": "*", **variables}

    async def start(
        self, *words: str, variables: Mapping[str, str] | None = None, stdin: int = DEVNULL
    ) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "corral_cli", "launch", *words),
            env=self.environment(**(variables or {})),
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def run(self, *words: str, variables: Mapping[str, str] | None = None) -> Ended:
        """Run the command to its end."""
        process = await self.start(*words, variables=variables)
        output, errors = await process.communicate()
        return Ended(output.decode(), errors.decode(), process.returncode or 0)

    async def run_at_terminal(self, *words: str, answer: str) -> Ended:
        """Run the command with a terminal as its input, at which the user types an answer."""
        terminal, stdin = os.openpty()
        try:
            os.write(terminal, f"{answer}\n".encode())
            process = await self.start(*words, stdin=stdin)
            output, errors = await process.communicate()
        finally:
            os.close(terminal)
            os.close(stdin)
        return Ended(output.decode(), errors.decode(), process.returncode or 0)

    async def run_script(self, script: str, variables: Mapping[str, str]) -> Ended:
        """Run the commands of a shell that `--print` has printed."""
        process = await asyncio.create_subprocess_exec(
            *("sh", "-euc", script),
            env=self.environment(**variables),
            stdout=PIPE,
            stderr=PIPE,
        )
        output, errors = await process.communicate()
        return Ended(output.decode(), errors.decode(), process.returncode or 0)


@asynccontextmanager
async def run_launcher(folder: Path, *, require_keys: bool) -> AsyncIterator[Launcher]:
    """Run the services, and install a stand-in for each program."""
    home, token, models = folder / "home", write_service_token(folder), FakeInference()
    home.mkdir()
    for model in models.models:
        model.resolved_limits.context_tokens = CONTEXT_TOKENS
    async with (
        run_inference_service(models, service_token_file=token) as inference,
        run_control(
            folder, inference_target=str(inference.address), require_keys=require_keys
        ) as control,
        run_gateway(
            models,
            control_target=control.target,
            service_token_file=token,
            require_keys=require_keys,
            key_cache_s=0.0,
        ) as gateway,
    ):
        launcher = Launcher(home, gateway.url, control, models)
        for program in PROGRAMS.values():
            launcher.install(program.command)
        yield launcher
