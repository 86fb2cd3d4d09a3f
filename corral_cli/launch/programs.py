"""The coding agents that `corral launch` knows: how each is found and installed, and how it gets
the address of the server, the key, the model and the size of its context.

The facts are from the documentation or the source that `source` names. Keys are never among the
options, which everybody on the machine can read; all wins over what the user has configured.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

KEY_VARIABLE: Final = "CORRAL_API_KEY"
"""Every program gets its key in this variable, too: files and options name it."""
_MAX_OUTPUT_TOKENS: Final = 32_000


@dataclass(frozen=True)
class ServedModel:
    """A model of the server. `context_tokens` is None while it is not loaded."""

    name: str
    context_tokens: int | None = None

    @property
    def output_tokens(self) -> int | None:
        """How much of the context an answer may use: a quarter."""
        tokens = self.context_tokens
        return None if tokens is None else min(tokens // 4, _MAX_OUTPUT_TOKENS)

    def sizes(self, context: str, output: str) -> dict[str, int]:
        """The sizes under a program's names; empty while they are not known."""
        if self.context_tokens is None or self.output_tokens is None:
            return {}
        return {context: self.context_tokens, output: self.output_tokens}


@dataclass(frozen=True)
class Endpoint:
    """What a program is pointed at."""

    url: str
    """Of the gateway, without `/v1`."""
    key: str = field(repr=False)
    model: ServedModel
    """That of the program's requests."""
    others: Sequence[ServedModel]
    """Models that its user may choose instead."""
    folder: Path
    """Of Corral, for files of this program and this server."""

    @property
    def base_url(self) -> str:
        """For clients of OpenAI's API."""
        return f"{self.url}/v1"

    @property
    def models(self) -> list[ServedModel]:
        return [self.model, *self.others]


@dataclass(frozen=True)
class ProgramSettings:
    """What a program is started with."""

    variables: Mapping[str, str | None]
    """None: the variable is removed."""
    options: Sequence[str] = ()
    files: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    name: str
    """The word after `corral launch`."""
    title: str
    command: str
    """Its executable."""
    install: str
    homepage: str
    source: str
    """Where its settings are documented."""
    context_tokens: int
    """The shortest context with which it can work: about three times its first prompt, which
    `make test-clients` measures, and 16,384 at least."""
    configure: Callable[[Endpoint], ProgramSettings]
    scope: str = "generate"
    """What its key permits, as in `corral keys create --scope`."""
    places: tuple[str, ...] = ()
    """Where its installer puts it, if that is not on the PATH yet."""

    def find(self) -> str | None:
        """The path of its executable; None if it is not installed."""
        places = (str(Path(place).expanduser()) for place in self.places)
        return next(filter(None, map(shutil.which, (self.command, *places))), None)


def _claude(server: Endpoint) -> ProgramSettings:
    model, file = server.model.name, server.folder / "settings.json"
    sizes = server.model.sizes("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS")
    tiers = [f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in ("OPUS", "SONNET", "HAIKU", "FABLE")]
    models = (*tiers, "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    others = [f"CLAUDE_CODE_USE_{each}" for each in ("BEDROCK", "VERTEX", "FOUNDRY")]
    variables: dict[str, str | None] = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.key,
        "ANTHROPIC_API_KEY": None,  # it would be sent as well, and is another server's
        **dict.fromkeys(others),
        **dict.fromkeys(models, model),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it changes the beginning of each prompt
        **{name: str(size) for name, size in sizes.items()},
    }
    # Those in the user's settings file would win over the environment; this file wins over them.
    content = {"env": {name: value or "" for name, value in variables.items()}}
    options = ("--settings", str(file), "--model", model)
    return ProgramSettings(variables, options, {file: _json(content)})


def _codex(server: Endpoint) -> ProgramSettings:
    provider = {
        "name": "Corral",
        "base_url": server.base_url,
        "env_key": KEY_VARIABLE,
        "wire_api": "responses",
    }
    fields = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    values = {
        "model": json.dumps(server.model.name),
        "model_provider": '"corral"',
        "model_providers.corral": f"{{ {fields} }}",
    }
    if server.model.context_tokens is not None:
        values["model_context_window"] = str(server.model.context_tokens)
    options = [word for name, value in values.items() for word in ("-c", f"{name}={value}")]
    return ProgramSettings({}, options)


def _opencode(server: Endpoint) -> ProgramSettings:
    models: dict[str, Any] = {
        each.name: {"name": each.name, **({"limit": sizes} if sizes else {})}
        for each in server.models
        for sizes in [each.sizes("context", "output")]
    }
    options = {"baseURL": server.base_url, "apiKey": f"{{env:{KEY_VARIABLE}}}"}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Corral",
        "options": options,
        "models": models,
    }
    chosen = f"corral/{server.model.name}"
    config = {"provider": {"corral": provider}, "model": chosen, "small_model": chosen}
    return ProgramSettings({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _cline(server: Endpoint) -> ProgramSettings:
    kind, file = "openai-compatible", server.folder / "providers.json"
    settings = {
        "provider": kind,
        "model": server.model.name,
        "baseUrl": server.base_url,
        **server.model.sizes("contextWindow", "maxTokens"),
    }
    entry = {
        "settings": settings,
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    }
    content = {"version": 1, "lastUsedProvider": kind, "modes": {}, "providers": {kind: entry}}
    return ProgramSettings(
        {
            "CLINE_PROVIDER_SETTINGS_PATH": str(file),
            # Else sessions run in the user's hub, if one runs already, with its environment.
            "CLINE_SESSION_BACKEND_MODE": "local",
            "OPENAI_API_KEY": server.key,
        },
        ("--provider", kind, "--model", server.model.name),
        {file: _json(content)},
    )


def _continue(server: Endpoint) -> ProgramSettings:
    file = server.folder / "config.yaml"
    models = [
        {
            "name": each.name,
            "provider": "openai",
            "model": each.name,
            "apiBase": server.base_url,
            "apiKey": f"${{{{ secrets.{KEY_VARIABLE} }}}}",
            "roles": ["chat", "edit", "apply"],
            "capabilities": ["tool_use"],
            "defaultCompletionOptions": each.sizes("contextLength", "maxTokens"),
        }
        for each in server.models
    ]
    content = {"name": "Corral", "version": "1.0.0", "schema": "v1", "models": models}
    return ProgramSettings({}, ("--config", str(file)), {file: _json(content)})  # JSON is YAML


def _qwen(server: Endpoint) -> ProgramSettings:
    file = server.folder / "settings.json"
    models = [
        {
            "id": each.name,
            "name": each.name,
            "baseUrl": server.base_url,
            "envKey": KEY_VARIABLE,
            "generationConfig": {"contextWindowSize": each.context_tokens}
            if each.context_tokens
            else {},
        }
        for each in server.models
    ]
    # As the system's settings: the user's, which may name another server, do not win over them.
    variables = {"QWEN_CODE_SYSTEM_SETTINGS_PATH": str(file)}
    if server.model.output_tokens is not None:
        variables["QWEN_CODE_MAX_OUTPUT_TOKENS"] = str(server.model.output_tokens)
    return ProgramSettings(
        variables,
        ("--auth-type", "openai", "--model", server.model.name),
        {file: _json({"modelProviders": {"openai": models}})},
    )


def _gptme(server: Endpoint) -> ProgramSettings:
    context = server.model.context_tokens
    return ProgramSettings(
        {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_BASE": server.base_url,  # it comes first
            "OPENAI_API_KEY": server.key,
            # The tokens at which it compacts; it takes 128,000 for the context of any local model.
            **({"GPTME_CONTEXT_BUDGET": str(context * 3 // 4)} if context else {}),
        },
        ("--model", f"local/{server.model.name}"),
    )


def _aider(server: Endpoint) -> ProgramSettings:
    file, model = server.folder / "model-metadata.json", f"openai/{server.model.name}"
    sizes = server.model.sizes("max_input_tokens", "max_output_tokens")
    metadata = {model: {**sizes, "litellm_provider": "openai", "mode": "chat"}}
    return ProgramSettings(
        {
            "AIDER_OPENAI_API_BASE": server.base_url,
            "OPENAI_BASE_URL": None,  # it comes first
            "AIDER_OPENAI_API_KEY": server.key,
            "AIDER_MODEL": model,
            "AIDER_WEAK_MODEL": model,
            "AIDER_MODEL_METADATA_FILE": str(file),
        },
        files={file: _json(metadata)},
    )


def _pi(server: Endpoint) -> ProgramSettings:
    file = server.folder / "corral.mjs"
    models = [
        {
            "id": each.name,
            "name": each.name,
            "reasoning": False,
            "input": ["text"],
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            **each.sizes("contextWindow", "maxTokens"),
        }
        for each in server.models
    ]
    provider = {"baseUrl": server.base_url, "api": "openai-completions", "models": models}
    extension = (
        f"const provider = {json.dumps(provider, indent=2)};\n"
        "export default (pi) =>\n"
        f'  pi.registerProvider("corral", {{ ...provider, apiKey: process.env.{KEY_VARIABLE} }});\n'
    )
    options = ("--extension", str(file), "--provider", "corral", "--model", server.model.name)
    return ProgramSettings({}, options, {file: extension})


def _json(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"


PROGRAMS: Final = {
    program.name: program
    for program in (
        Program(
            "claude",
            "Claude Code",
            "claude",
            install="npm install -g @anthropic-ai/claude-code",
            homepage="https://code.claude.com",
            source="https://code.claude.com/docs/en/env-vars",
            context_tokens=48 * 1024,
            configure=_claude,
            places=("~/.local/bin/claude", "~/.claude/local/claude"),
        ),
        Program(
            "codex",
            "Codex",
            "codex",
            install="npm install -g @openai/codex",
            homepage="https://developers.openai.com/codex",
            source="https://developers.openai.com/codex/config-reference",
            context_tokens=32 * 1024,
            configure=_codex,
            scope="inference",  # that of the route for responses
        ),
        Program(
            "opencode",
            "opencode",
            "opencode",
            install="npm install -g opencode-ai",
            homepage="https://opencode.ai",
            source="https://opencode.ai/docs/config",
            context_tokens=32 * 1024,
            configure=_opencode,
            places=("~/.opencode/bin/opencode",),
        ),
        Program(
            "cline",
            "Cline",
            "cline",
            install="npm install -g cline",
            homepage="https://cline.bot",
            source="https://github.com/cline/cline/blob/main/apps/cli/README.md",
            context_tokens=16 * 1024,
            configure=_cline,
        ),
        Program(
            "continue",
            "Continue",
            "cn",
            install="npm install -g @continuedev/cli",
            homepage="https://continue.dev",
            source="https://docs.continue.dev/reference",
            context_tokens=16 * 1024,
            configure=_continue,
        ),
        Program(
            "qwen",
            "Qwen Code",
            "qwen",
            install="npm install -g @qwen-code/qwen-code",
            homepage="https://qwenlm.github.io/qwen-code-docs",
            source="https://qwenlm.github.io/qwen-code-docs/en/users/configuration/settings",
            context_tokens=48 * 1024,
            configure=_qwen,
        ),
        Program(
            "gptme",
            "gptme",
            "gptme",
            install="pipx install gptme",
            homepage="https://gptme.org",
            source="https://gptme.org/docs/providers.html",
            context_tokens=32 * 1024,
            configure=_gptme,
        ),
        Program(
            "aider",
            "aider",
            "aider",
            install="python -m pip install aider-install && aider-install",
            homepage="https://aider.chat",
            source="https://aider.chat/docs/config/options.html",
            context_tokens=16 * 1024,
            configure=_aider,
            places=("~/.local/bin/aider",),
        ),
        Program(
            "pi",
            "pi",
            "pi",
            install="npm install -g @earendil-works/pi-coding-agent",
            homepage="https://pi.dev",
            source="https://github.com/earendil-works/pi (packages/coding-agent/docs)",
            context_tokens=16 * 1024,
            configure=_pi,
        ),
    )
}
"""By the word after `corral launch`."""
