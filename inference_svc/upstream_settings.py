"""Settings of upstreams: engines of others (vLLM, SGLang, llama-server, or any with OpenAI's API)
that serve models."""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from inference_svc.models.sources import ENGINE
from svc_kit.adapter_rules import is_adapter_name
from svc_kit.network import is_http_url
from svc_kit.settings.groups import PrivateFile, SettingsGroup, UpstreamTlsSettings

UPSTREAM_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
EngineKind = Literal["auto", "vllm", "sglang", "llama_server", "openai"]
EngineTask = Literal["generate", "embed"]
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}")
_HEADER_VALUE: Final = re.compile(r"[ -~]{0,4096}")
_OWN_HEADERS: Final = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "expect"),
        *("host", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)


def check_engine_url(text: str) -> str:
    """Return the URL of an engine without a slash at its end. Raises ValueError."""
    if not is_http_url(text):
        raise ValueError(
            "an engine's URL is http(s)://host[:port][/prefix], without a user name or password:"
            " set key_file"
        )
    return text.rstrip("/")


def _check_adapter(name: str) -> str:
    if not is_adapter_name(name):
        raise ValueError(f"{name!r} is no name of an adapter: A-Z, a-z, 0-9 and '._:-'")
    return name


AdapterName = Annotated[str, AfterValidator(_check_adapter)]
UpstreamName = Annotated[str, Field(pattern=UPSTREAM_NAME)]
EngineUrl = Annotated[str, AfterValidator(check_engine_url)]
EngineHost = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(:[0-9]{1,5})?$")]


class UpstreamSettings(SettingsGroup):
    """An engine that serves a model over HTTP, with token ids (vLLM, SGLang or llama-server) or in
    text mode. Its name here is the name of the model in requests."""

    urls: list[EngineUrl] = Field(min_length=1, max_length=16)
    """URLs of engines that serve the same model, as in http://10.0.0.5:8000: requests go to the
    least busy one, and on at another if one is lost."""
    kind: EngineKind = "auto"
    """vllm, sglang, llama_server or openai. auto: asked of the engine; without a tokenizer openai,
    which is text mode: messages are sent to its OpenAI API, and come back parsed."""
    tokenizer: str = ""
    """The engine's tokenizer and chat template: a GGUF file, a folder of Hugging Face files,
    another source as in models, or "engine": where the engine says that its model is. It is
    compared with the engine's. Empty: text mode."""
    model: str = ""
    """The model's name at the engine. Empty: the only one that it serves."""
    task: EngineTask | None = None
    """generate or embed: what the model does in text mode. Unset: generate; with a tokenizer the
    engine is asked."""
    adapters: list[AdapterName] = Field([])
    """LoRA adapters that the engine has loaded, as it lists them (llama-server: their files without
    .gguf), which are models with these names in requests. Not in text mode."""
    adapter_folder: str = Field("", pattern=r"^(/.{0,1023})?$")
    """Folder at the engine's machine with a folder in PEFT's form for each of adapters, by its
    name. Those that vLLM or SGLang has not loaded, it is told to load from there. Empty: none."""
    key_file: PrivateFile | None = None
    """File with the API key that the engine requires."""
    headers: Mapping[str, SecretStr] = Field({})
    """Headers of each request to the engine, besides those that HTTP needs."""
    concurrency: int | None = Field(None, ge=1, le=4096)
    """Sequences that the engine at each URL gets at once; others wait in the queue here. Unset:
    what the engine says, else 16."""
    batch_ahead: int | None = Field(None, ge=0, le=4096)
    """Requests of batches that it gets beyond that, and that wait in it, so that it begins with one
    as soon as another request ends. They wait here again when others come. Unset: as many again,
    but 0 if concurrency is set, and in text mode."""
    context_tokens: int | None = Field(None, ge=256)
    """Context of one sequence, prompt and output. Unset: what the engine says."""
    connect_timeout_s: float = Field(5.0, gt=0, le=600)
    """How long a connection to the engine may take."""
    first_token_timeout_s: float = Field(600.0, gt=0, le=86400)
    """How long the engine may take to begin an answer."""
    token_timeout_s: float = Field(60.0, gt=0, le=3600)
    """How long the engine may be silent within an answer."""
    tls: UpstreamTlsSettings | None = None
    """Authorities and client certificate for https URLs. Unset: the authorities of the system."""

    @model_validator(mode="after")
    def _urls_differ(self) -> Self:
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls: one is listed twice")
        if self.tls is not None and not all(url.startswith("https:") for url in self.urls):
            raise ValueError("tls: all urls must be https")
        if self.tls is not None and self.tls.server_name is not None:
            raise ValueError("tls.server_name: the host of each url must be in its certificate")
        return self

    @model_validator(mode="after")
    def _adapters_are_listed_once(self) -> Self:
        if len(set(self.adapters)) < len(self.adapters):
            raise ValueError("adapters: one is listed twice")
        if self.adapters and self.is_text_mode:
            raise ValueError(
                "adapters: in text mode, one is an upstream of its own, with its name as model"
            )
        if self.adapter_folder and not self.adapters:
            raise ValueError("adapter_folder: name those to load in adapters")
        if self.adapter_folder and self.kind == "llama_server":
            raise ValueError("adapter_folder: llama-server loads adapters at its start only")
        return self

    @property
    def is_text_mode(self) -> bool:
        """Whether it is used without token ids."""
        return not self.tokenizer.strip()

    @property
    def tokenizer_from_engine(self) -> bool:
        """Whether the engine is asked where its tokenizer is."""
        return self.tokenizer.strip() == ENGINE

    @model_validator(mode="after")
    def _has_the_tokenizer_of_its_kind(self) -> Self:
        if self.kind == "openai" and not self.is_text_mode:
            raise ValueError("tokenizer: kind openai is text mode, which has none")
        if self.task is not None and not self.is_text_mode:
            raise ValueError("task: an engine with a tokenizer is asked; only text mode needs it")
        if self.kind not in ("auto", "openai") and self.is_text_mode:
            raise ValueError(
                "tokenizer: name that of the engine: a GGUF file, a folder of Hugging Face files,"
                " hf:owner/repository/file.gguf, or engine (`corral up --tokenizer`)"
            )
        return self

    @model_validator(mode="after")
    def _headers_can_be_sent(self) -> Self:
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"headers: {name!r} is not the name of a header")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"headers: {name} is set by HTTP itself")
            if name.lower() == "authorization" and self.key_file is not None:
                raise ValueError("headers: authorization is set by key_file too")
            if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
                raise ValueError(f"headers: the value of {name} is not printable ASCII")
        return self
