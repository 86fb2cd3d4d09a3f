"""The message of `corral up` when all services are ready: addresses and a sample request."""

import json
import shlex
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.inference.v1 import model_pb2

from corral_cli.connection import command_name
from corral_cli.up.ports import reachable
from inference_svc.models.sources import BUNDLED_NAME
from svc_kit.network import Address
from svc_kit.settings.groups import TlsSettings, UpstreamTlsSettings, default_data_dir

QUESTION = "What is the capital of France?"
REAL_MODEL = "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"


def real_model_command() -> str:
    """Return the command that serves a useful model instead of the bundled one."""
    return f"{command_name()} up --model {REAL_MODEL}"


@dataclass(frozen=True)
class Announcement:
    gateway: Address
    inference: Address
    control: Address
    management: Sequence[Address]
    """Management addresses of the services."""
    models: Sequence[model_pb2.Model]
    data_dir: Path
    elapsed_s: float
    needs_key: bool
    """Whether callers must send an API key."""
    away: Mapping[str, str] = field(default_factory=dict)
    """The services that could not start yet, and why."""
    tls: TlsSettings | None = None
    """That of the gateway, which then serves HTTPS."""
    inference_tls: UpstreamTlsSettings | None = None
    control_tls: UpstreamTlsSettings | None = None
    """How the gateway calls the other services with TLS."""
    require_keys: bool = False
    """Whether the owner has to create the first key."""

    def text(self) -> str:
        """Format the message."""
        base = self.gateway_url
        metrics = [f"http://{address}/metrics" for address in self.management]
        rows = [
            ("OpenAI API", f"{base}/v1    (description: {base}/docs)"),
            ("page", f"{base}/ui/"),
            ("gRPC", f"{reachable(self.inference)}    (reflection is on)"),
            ("", f"{reachable(self.control)}    (files, uploads, batches)"),
            ("metrics", "  ".join(metrics)),
            ("data", str(self.data_dir)),
            *([("keys", self.create_key_command())] if self.require_keys else []),
            *(("model", describe(model)) for model in self.models),
        ]
        away = "".join(f", without {name}: it {why}" for name, why in self.away.items())
        lines = [f"Corral is ready after {self.elapsed_s:.1f} s{away}", ""]
        lines += [f"  {title:<11} {value}" for title, value in rows]
        lines += [
            "",
            "Try it:",
            f"  {self.curl_command()}",
            f"  {self.chat_command()}",
        ]
        if any(model.name == BUNDLED_NAME for model in self.models):
            lines += [
                "",
                "The bundled demo-chat is a tiny model. It shows that everything works, but knows",
                f"very little. To serve a real model: {real_model_command()}",
            ]
        return "\n".join([*lines, "", "Ctrl-C stops everything."])

    @property
    def gateway_url(self) -> str:
        """The URL of the gateway on this machine."""
        return f"{'https' if self.tls else 'http'}://{reachable(self.gateway)}"

    def curl_command(self) -> str:
        """Return a command line that sends a chat completion to the first model."""
        model = next((model.name for model in self.models if not model.parent), "")
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
        key = " -H 'authorization: Bearer '$CORRAL_API_KEY" if self.needs_key else ""
        tls = {} if self.tls is None else {"--cacert": self.tls.certificate_file}
        if self.tls is not None and self.tls.client_ca_file is not None:
            tls |= {"--cert": Path("CLIENT.crt"), "--key": Path("CLIENT.key")}
        return (
            f"curl{_flags(tls)} {self.gateway_url}/v1/chat/completions{key}"
            f" -H 'content-type: application/json' -d '{json.dumps(body)}'"
        )

    def create_key_command(self) -> str:
        return f"{_corral(self.control_tls)} keys create{_flags({'--data-dir': self.data_dir})}"

    def chat_command(self) -> str:
        """Return a command line that starts a chat. Commands find the services of the default data
        folder by themselves."""
        is_default = self.data_dir == default_data_dir({})
        flags = {} if is_default else {"--data-dir": self.data_dir}
        return f"{_corral(self.inference_tls)} chat{_flags(flags)}"


def _corral(tls: UpstreamTlsSettings | None) -> str:
    """The command with the options for a service with TLS."""
    if tls is None:
        return command_name()
    # Without the option the command uses no TLS.
    ca_file = tls.ca_file or ssl.get_default_verify_paths().cafile or "CA_FILE"
    files = {"--certificate-file": tls.certificate_file, "--key-file": tls.key_file}
    return f"{command_name()}{_flags({'--ca-file': ca_file, **files})}"


def _flags(files: Mapping[str, Path | str | None]) -> str:
    """Options with files, without those that are None."""
    named = ((flag, file) for flag, file in files.items() if file is not None)
    return "".join(f" {flag} {shlex.quote(str(file))}" for flag, file in named)


_TEXT_MODE = "; --tokenizer adds resume, our parsers and exact usage"


def _describe_upstream(model: model_pb2.Model) -> str:
    upstream, limits = model.upstream, model.resolved_limits
    if model.state == model_pb2.Model.STATE_READY:
        size = f" of {limits.context_tokens:,} tokens" if limits.context_tokens else ""
        remark = _TEXT_MODE if upstream.text_mode and not upstream.vector_size else ""
        urls = ", ".join(each.url for each in upstream.endpoints)
        return f"{upstream.engine} at {urls}, {limits.slots} sequences{size}{remark}"
    if model.state == model_pb2.Model.STATE_AVAILABLE:
        return "connected by the first request"
    away = "; ".join(
        f"{each.url}: {each.problem or 'no answer yet'}" for each in upstream.endpoints
    )
    return f"its engine is away, and is tried again: {away}"


def describe(model: model_pb2.Model) -> str:
    """Format a model as one line: name, sizes, slots and context."""
    limits = model.resolved_limits
    if model.state == model_pb2.Model.STATE_FAILED:
        return f"{model.name}    failed: {model.problem}"
    if model.parent and model.HasField("upstream"):
        return f"{model.name}    adapter of {model.parent}"
    if model.HasField("upstream"):
        return f"{model.name}    {_describe_upstream(model)}"
    if model.parent:
        return f"{model.name}    adapter of {model.parent}, {model.size_bytes / 1e6:,.1f} MB"
    sizes = f"{model.num_parameters / 1e6:,.0f} M parameters, {model.size_bytes / 1e6:,.0f} MB"
    if not limits.slots:
        return f"{model.name}    {sizes}"
    return (
        f"{model.name}    {sizes}, {limits.slots} slots of {limits.context_tokens:,} tokens"
        f" ({limits.kv_bytes / 1e6:,.0f} MB of KV cache), {limits.threads} compute thread(s)"
    )
