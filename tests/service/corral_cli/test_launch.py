"""`corral launch`, with a stand-in for the programs, against a gateway and a control service."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import ANY

import pytest
import pytest_asyncio

from corral_cli.launch.programs import PROGRAMS
from tests.support.launched_programs import OTHER_SERVERS, Launcher, run_launcher
from tests.support.operators import GENERATE, INFERENCE

CONTEXT: Final = 65536
OUTPUT: Final = 16384
CLAUDE: Final = {
    "ANTHROPIC_BASE_URL": "URL",
    "ANTHROPIC_AUTH_TOKEN": "KEY",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "fake",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "fake",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "fake",
    "ANTHROPIC_DEFAULT_FABLE_MODEL": "fake",
    "ANTHROPIC_SMALL_FAST_MODEL": "fake",
    "CLAUDE_CODE_SUBAGENT_MODEL": "fake",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "16384",
}
REMOVED: Final = {
    "claude": {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"},
    "aider": {"OPENAI_BASE_URL"},
}
"""Variables of other servers that a program does not get, beside Corral's service token."""
VARIABLES: Final[dict[str, dict[str, Any]]] = {
    "claude": CLAUDE,
    "opencode": {"OPENCODE_CONFIG_CONTENT": ANY},
    "cline": {
        "CLINE_PROVIDER_SETTINGS_PATH": "FILES/providers.json",
        "CLINE_SESSION_BACKEND_MODE": "local",
        "OPENAI_API_KEY": "KEY",
    },
    "qwen": {
        "QWEN_CODE_SYSTEM_SETTINGS_PATH": "FILES/settings.json",
        "QWEN_CODE_MAX_OUTPUT_TOKENS": "16384",
    },
    "gptme": {
        "OPENAI_BASE_URL": "URL/v1",
        "OPENAI_API_BASE": "URL/v1",
        "OPENAI_API_KEY": "KEY",
        "GPTME_CONTEXT_BUDGET": "49152",
    },
    "aider": {
        "AIDER_OPENAI_API_BASE": "URL/v1",
        "AIDER_OPENAI_API_KEY": "KEY",
        "AIDER_MODEL": "openai/fake",
        "AIDER_WEAK_MODEL": "openai/fake",
        "AIDER_MODEL_METADATA_FILE": "FILES/model-metadata.json",
    },
}
"""What a program is told in variables, beside its key in Corral's own."""
OPTIONS: Final[dict[str, list[str]]] = {
    "claude": ["--settings", "FILES/settings.json", "--model", "fake"],
    "codex": [
        *("-c", 'model="fake"', "-c", 'model_provider="corral"', "-c"),
        'model_providers.corral={ name = "Corral", base_url = "URL/v1",'
        ' env_key = "CORRAL_API_KEY", wire_api = "responses" }',
        *("-c", "model_context_window=65536"),
    ],
    "opencode": [],
    "cline": ["--provider", "openai-compatible", "--model", "fake"],
    "continue": ["--config", "FILES/config.yaml"],
    "qwen": ["--auth-type", "openai", "--model", "fake"],
    "gptme": ["--model", "local/fake"],
    "aider": [],
    "pi": ["--extension", "FILES/corral.mjs", "--provider", "corral", "--model", "fake"],
}
FILES: Final[dict[str, Any]] = {
    "claude": {
        "env": CLAUDE
        | dict.fromkeys(
            [
                *("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"),
                *("CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
            ],
            "",
        )
    },
    "continue": {
        "name": "Corral",
        "version": "1.0.0",
        "schema": "v1",
        "models": [
            {
                "name": name,
                "provider": "openai",
                "model": name,
                "apiBase": "URL/v1",
                "apiKey": "${{ secrets.CORRAL_API_KEY }}",
                "roles": ["chat", "edit", "apply"],
                "capabilities": ["tool_use"],
                "defaultCompletionOptions": {"contextLength": CONTEXT, "maxTokens": OUTPUT},
            }
            for name in ("fake", "org/other:1b")
        ],
    },
    "cline": {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {
            "openai-compatible": {
                "settings": {
                    "provider": "openai-compatible",
                    "model": "fake",
                    "baseUrl": "URL/v1",
                    "contextWindow": CONTEXT,
                    "maxTokens": OUTPUT,
                },
                "updatedAt": "2026-01-01T00:00:00.000Z",
                "tokenSource": "manual",
            }
        },
    },
    "qwen": {
        "modelProviders": {
            "openai": [
                {
                    "id": name,
                    "name": name,
                    "baseUrl": "URL/v1",
                    "envKey": "CORRAL_API_KEY",
                    "generationConfig": {"contextWindowSize": CONTEXT},
                }
                for name in ("fake", "org/other:1b")
            ]
        }
    },
    "opencode": {
        "provider": {
            "corral": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Corral",
                "options": {"baseURL": "URL/v1", "apiKey": "{env:CORRAL_API_KEY}"},
                "models": {
                    name: {"name": name, "limit": {"context": CONTEXT, "output": OUTPUT}}
                    for name in ("fake", "org/other:1b")
                },
            }
        },
        "model": "corral/fake",
        "small_model": "corral/fake",
    },
    "pi": {
        "baseUrl": "URL/v1",
        "api": "openai-completions",
        "models": [
            {
                "id": name,
                "name": name,
                "reasoning": False,
                "input": ["text"],
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "contextWindow": CONTEXT,
                "maxTokens": OUTPUT,
            }
            for name in ("fake", "org/other:1b")
        ],
    },
    "aider": {
        "openai/fake": {
            "max_input_tokens": CONTEXT,
            "max_output_tokens": OUTPUT,
            "litellm_provider": "openai",
            "mode": "chat",
        }
    },
}
"""The content of a program's file, or variable with JSON."""


@pytest_asyncio.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[Launcher]:
    """A user of a server that requires keys."""
    async with run_launcher(tmp_path, require_keys=True) as running:
        yield running


def plain(text: str, launcher: Launcher, key: str) -> str:
    """Replace what differs in each run."""
    place = launcher.gateway.removeprefix("http://").replace(":", "-")
    folder = rf"{re.escape(str(launcher.home))}/.config/corral/launch/[a-z]+/{place}-[0-9a-f]{{8}}"
    return re.sub(folder, "FILES", text).replace(launcher.gateway, "URL").replace(key, "KEY")


def contents(started: dict[str, Any]) -> list[str]:
    """The JSON that a program reads."""
    texts = [*started["files"].values(), started["variables"].get("OPENCODE_CONFIG_CONTENT")]
    return [re.sub(r"(?s)^const provider = |;\nexport .*$", "", text) for text in texts if text]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_is_pointed_at_the_server(launcher: Launcher, name: str) -> None:
    """By its environment, its options and a private file, with a key that no option has; what it
    knows of other servers does not win."""
    words = (name, *launcher.places, *launcher.token, "--", "-p", "a b")
    started = (await launcher.run(*words, variables=OTHER_SERVERS)).started
    variables, inherited = started["variables"], launcher.environment(**OTHER_SERVERS)
    key = variables["CORRAL_API_KEY"]

    assert key.startswith("sk-corral-")
    assert [plain(each, launcher, key) for each in started["options"]] == [
        *OPTIONS.get(name, ()),
        *("-p", "a b"),
    ]
    assert {
        variable: plain(value, launcher, key)
        for variable, value in variables.items()
        if inherited.get(variable) != value and variable not in ("CORRAL_API_KEY", "LC_CTYPE")
    } == VARIABLES.get(name, {})
    assert inherited.keys() - variables.keys() == {
        "CORRAL_SERVICE_TOKEN_FILE",
        *REMOVED.get(name, ()),
    }
    found = [json.loads(plain(text, launcher, key)) for text in contents(started)]
    assert found == ([FILES[name]] if name in FILES else [])
    assert started["modes"] in ([], ["0o600"])


@pytest.mark.parametrize("name", ["claude", "codex", "pi"])
async def test_the_printed_commands_do_the_same(launcher: Launcher, name: str) -> None:
    """With the key if it is asked for, else with a mask."""
    words = [name, *launcher.places, *launcher.token]
    started = (await launcher.run(*words, "--", "-p", "a b")).started
    key = started["variables"]["CORRAL_API_KEY"]
    masked = await launcher.run(*words, "--print", "--", "-p", "a b")
    printed = await launcher.run(*words, "--print", "--show-key", "--", "-p", "a b")
    again = (await launcher.run_script(printed.output, {})).started

    assert key not in masked.output
    assert masked.output == printed.output.replace(key, "'***'").replace("\"'***'\"", '"***"')
    assert again | {"variables": {}} == started | {"variables": {}}
    assert again["variables"].items() >= started["variables"].items()


async def test_nothing_is_made_by_printing_without_the_key(launcher: Launcher) -> None:
    """No key, and no file; and the program need not be installed."""
    launcher.install("pi").unlink()
    ended = await launcher.run("pi", *launcher.places, *launcher.token, "--print")

    assert (ended.code, ended.output) == (1, "")
    assert "--print --show-key" in ended.errors
    assert list(launcher.home.glob(".config/*")) == []
    assert (await launcher.operator.list_keys()).keys == []


async def test_exit_code_and_signals_are_those_of_the_program(launcher: Launcher) -> None:
    """It replaces the command, with the signals as a shell would leave them."""
    launcher.install("codex", "#!/bin/sh\ngrep SigIgn /proc/self/status\nexit 7\n")
    launcher.install("pi", "#!/bin/sh\necho started\nexec sleep 60\n")
    ended = await launcher.run("codex", *launcher.places, *launcher.token)
    process = await launcher.start("pi", *launcher.places, *launcher.token)
    assert process.stdout
    line = await process.stdout.readline()
    process.send_signal(signal.SIGTERM)

    assert ended.code == 7
    assert int(ended.output.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert line == b"started\n"
    assert await process.wait() == -signal.SIGTERM


async def test_the_key_of_a_program_and_project_is_used_again(launcher: Launcher) -> None:
    """Until it is revoked; then the next start creates another one. Only the user can read it."""
    await launcher.operator.create_project("red")
    words = ("codex", *launcher.places, *launcher.token)
    ends = [
        await launcher.run(*words),
        await launcher.run(*words),
        await launcher.run(*words, "--project", "red", "--budget", "5"),
        await launcher.run("claude", *launcher.places, *launcher.token),
    ]
    keys = [each.started["variables"]["CORRAL_API_KEY"] for each in ends]
    listed = (await launcher.operator.list_keys()).keys
    (limit,) = await launcher.limits()
    refused = await launcher.run(*words, "--project", "red", "--budget", "6")
    revoke = re.search(r"keys revoke (key_\w+)", ends[0].errors)
    assert revoke
    await launcher.operator.revoke(revoke[1])
    other = (await launcher.run(*words)).started["variables"]["CORRAL_API_KEY"]

    assert len({*keys, other}) == 4
    assert keys[0] == keys[1]
    assert ends[1].errors == ""
    assert sorted((key.name, key.project, [*key.scopes]) for key in listed) == [
        ("launch claude", "default", [GENERATE]),
        ("launch codex", "default", [INFERENCE]),
        ("launch codex", "red", [INFERENCE]),
    ]
    assert (limit.key, limit.amount) == (listed[1].id, 5 * 10**9)
    assert (refused.code, listed[1].id in refused.errors) == (2, True)
    stored = list(launcher.home.glob(".config/corral/launch/keys/*"))
    assert {path.stat().st_mode & 0o777 for path in stored} == {0o600}


async def test_programs_of_two_projects_share_no_file(launcher: Launcher) -> None:
    """One that runs may read its file again, which has its key."""
    await launcher.operator.create_project("red")
    words = ("claude", *launcher.places, *launcher.token)
    first = (await launcher.run(*words)).started
    other = (await launcher.run(*words, "--project", "red")).started

    assert first["variables"]["CORRAL_API_KEY"] in "".join(first["files"].values())
    assert read_again(first["files"]) == first["files"]
    assert not first["files"].keys() & other["files"].keys()


def read_again(files: Mapping[str, str]) -> dict[str, str]:
    return {path: Path(path).read_text() for path in files}


@pytest.mark.parametrize("damage", [{"secret": 5}, {"secret": "sch\u00e9"}, {"more": 1}])
async def test_a_damaged_file_of_a_key_is_named(launcher: Launcher, damage: dict[str, Any]) -> None:
    words = ("codex", *launcher.places, *launcher.token)
    await launcher.run(*words)
    (path,) = launcher.home.glob(".config/corral/launch/keys/*")
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    ended = await launcher.run(*words)

    assert ended.code == 1
    assert f"{path} is damaged; delete it" in ended.errors


async def test_a_key_that_may_not_create_keys_is_used_itself(launcher: Launcher) -> None:
    """Said on stderr; not if a project is asked for, or the key may be an administrator's. Without
    a key the error says what to do."""
    mine = (await launcher.operator.create_key(scopes=[INFERENCE])).secret
    words = ("pi", *launcher.places, "--api-key", mine)
    ended = await launcher.run(*words)
    of_project = await launcher.run(*words, "--project", "default")
    without = await launcher.run("pi", *launcher.places)
    away = await launcher.run(*words, "--control", "127.0.0.1:9")

    assert ended.started["variables"]["CORRAL_API_KEY"] == mine
    assert "uses the key given, which may not create keys" in ended.errors
    assert (of_project.code, "lacks the scope 'admin'" in of_project.errors) == (1, True)
    assert (without.code, "CORRAL_API_KEY" in without.errors) == (1, True)
    assert (away.code, "no server answers at 127.0.0.1:9" in away.errors) == (1, True)


async def test_a_server_without_keys_gets_a_placeholder(tmp_path: Path) -> None:
    """Unless a project is asked for, which needs a key. Without a terminal a short context is only
    a warning."""
    async with run_launcher(tmp_path, require_keys=False) as launcher:
        launcher.models.models[0].resolved_limits.context_tokens = 4096
        ended = await launcher.run("codex", *launcher.places)
        printed = await launcher.run("codex", *launcher.places, "--print")
        of_project = await launcher.run("codex", *launcher.places, "--project", "default")

    assert ended.started["variables"]["CORRAL_API_KEY"] == "none"
    assert "export CORRAL_API_KEY=none\n" in printed.output
    assert of_project.started["variables"]["CORRAL_API_KEY"].startswith("sk-corral-")
    assert re.sub(r"\s+", " ", ended.errors) == (
        "corral: warning: fake has a context of 4,096 tokens, and Codex needs 32,768 or more. Start"
        " the server with --context 32768, or choose another model with --model "
    )


async def test_a_short_context_is_a_question_at_a_terminal(tmp_path: Path) -> None:
    """An agent's screen would hide the warning."""
    async with run_launcher(tmp_path, require_keys=False) as launcher:
        launcher.models.models[0].resolved_limits.context_tokens = 4096
        words = ("codex", *launcher.places)
        no = await launcher.run_at_terminal(*words, answer="n")
        yes = await launcher.run_at_terminal(*words, answer="y")
        sure = await launcher.run_at_terminal(*words, "--yes", answer="n")

    assert (no.code, no.output) == (1, "")
    assert "Start Codex anyway? [y/N]" in no.errors
    assert yes.started["options"] == sure.started["options"]
    assert "anyway" not in sure.errors


async def test_what_is_not_known_of_a_model_is_not_set(launcher: Launcher) -> None:
    """It is not loaded yet."""
    launcher.models.models[1].resolved_limits.Clear()
    words = ("--model", "org/other:1b", *launcher.places, *launcher.token)
    starts = {name: (await launcher.run(name, *words)).started for name in ("codex", "claude")}
    told = json.dumps([[each["options"], each["files"]] for each in starts.values()])

    assert "context" not in told.lower().replace("org/other", "")
    assert starts["claude"]["options"][-1] == "org/other:1b"


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["codex", "--model", "none"], 1, "no model 'none' (there: fake, org/other:1b)"),
        (["codex", "--show-key"], 2, "--show-key is for --print"),
        (["codex", "--gateway", "example:1"], 2, "'example:1' is not http://HOST:PORT"),
        (["codex", "--gateway", "http://127.0.0.1:9"], 1, "no server answers at http://127.0.0.1"),
        (["codex", "--project", "none"], 1, "No such project: none"),
        (["aider"], 1, "install it: python -m pip install aider-install && aider-install"),
        (["pi"], 1, "pi cannot be started: Exec format error"),
        (["emacs"], 2, "'emacs' is not one of 'claude', 'codex'"),
    ],
)
async def test_an_error_says_what_to_do(
    launcher: Launcher, words: list[str], code: int, error: str
) -> None:
    launcher.install("aider").unlink()
    launcher.install("pi", "no program")
    ended = await launcher.run(*launcher.places, *launcher.token, *words)

    assert (ended.code, ended.output) == (code, "")
    assert error in ended.errors


async def test_another_server_is_recognized(launcher: Launcher) -> None:
    """By the list of its models."""
    async with await asyncio.start_server(answer_hello, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ended = await launcher.run("codex", "--gateway", f"http://127.0.0.1:{port}")

    assert (ended.code, "is no gateway of Corral" in ended.errors) == (1, True)


async def answer_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
    await writer.drain()
    writer.close()


async def test_the_programs_are_listed_with_their_places(launcher: Launcher) -> None:
    launcher.install("cn").unlink()
    lines = (await launcher.run()).output.splitlines()

    assert [line.split()[0] for line in lines[1:]] == list(PROGRAMS)
    assert lines[2].split() == ["codex", "Codex", str(launcher.home / "bin" / "codex")]
    assert "to install: npm install -g @continuedev/cli" in lines[5]
