"""Reads the small files of a folder in Hugging Face's format, and describes its model.

The model runs elsewhere, so that weights are neither needed nor read. `tokenizer.json` may be large
and is opened by `inference_svc.hf_tokenizer`, first in a child process.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from inference_svc.models.file_identity import FileStamp
from inference_svc.models.metadata import ModelClass, ModelFile
from model_files.gguf import ModelFileInvalid

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
GENERATION_CONFIG: Final = "generation_config.json"
CHAT_TEMPLATE: Final = "chat_template.jinja"
REQUIRED_FILES: Final = (CONFIG, TOKENIZER)
OPTIONAL_FILES: Final = (TOKENIZER_CONFIG, GENERATION_CONFIG, CHAT_TEMPLATE)
MAX_TOKENS: Final = 1 << 20
"""Tokens of a vocabulary. The largest of today have a quarter of it."""
MAX_TOKENIZER_BYTES: Final = 64 << 20
_MAX_JSON_BYTES = 8 << 20
_MAX_TEMPLATE_BYTES = 1 << 20

Model = TypeVar("Model", bound=BaseModel)
TokenId = Annotated[int, Field(ge=0, lt=MAX_TOKENS)]
Tokens = TokenId | Annotated[list[TokenId], Field(max_length=1024)] | None
Count = Annotated[int, Field(ge=0, lt=2**31)]


def _field(*names: str) -> Any:
    """A number under one of these names, 0 if there is none: transformers has defaults of its own
    for each architecture, and some models leave these out."""
    return Field(0, validation_alias=AliasChoices(*names))


class Config(BaseModel):
    """`config.json`, with the names that older models give to its fields. Models that also take
    pictures have the configuration of their text in `text_config`."""

    architectures: list[str] | None = None
    model_type: str = ""
    is_encoder_decoder: bool = False
    vocab_size: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    hidden_size: Count = _field("hidden_size", "n_embd", "d_model")
    num_layers: Count = _field("num_hidden_layers", "n_layer", "num_layers")
    context_tokens: Count = _field("max_position_embeddings", "n_positions", "seq_length")
    bos_token_id: Tokens = None
    eos_token_id: Tokens = None
    decoder_start_token_id: TokenId | None = None
    text_config: "Config | None" = None

    @property
    def text(self) -> "Config":
        """The configuration of the language model."""
        return self.text_config or self


class GenerationConfig(BaseModel):
    """`generation_config.json`: further end tokens, and the sampling that the authors advise."""

    bos_token_id: Tokens = None
    eos_token_id: Tokens = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def sampling_hints(self) -> dict[str, str | float]:
        """Its sampling under the names of `general.sampling.*` in GGUF files."""
        values = {
            "temp": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "penalty_repeat": self.repetition_penalty,
        }
        return {name: value for name, value in values.items() if value is not None}


class AddedToken(BaseModel):
    """A token that is found in a text before the text is divided."""

    content: Annotated[str, Field(min_length=1, max_length=4096)]
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = True
    special: bool = False


class NamedTemplate(BaseModel):
    """One of several chat templates of a model."""

    name: str
    template: str


SpecialToken = AddedToken | str | None


class TokenizerConfig(BaseModel):
    """`tokenizer_config.json`."""

    added_tokens_decoder: dict[TokenId, AddedToken] = Field(default_factory=dict)
    bos_token: SpecialToken = None
    eos_token: SpecialToken = None
    unk_token: SpecialToken = None
    sep_token: SpecialToken = None
    pad_token: SpecialToken = None
    cls_token: SpecialToken = None
    mask_token: SpecialToken = None
    additional_special_tokens: list[AddedToken | str] | None = None
    chat_template: str | list[NamedTemplate] | None = None

    def special_text(self, *names: str) -> str | None:
        """The text of the first of these special tokens that it names."""
        found = (getattr(self, f"{name}_token") for name in names)
        return next((_text(token) for token in found if token is not None), None)

    @property
    def special_texts(self) -> frozenset[str]:
        """The texts of all special tokens that it names."""
        kinds = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
        tokens = [getattr(self, f"{kind}_token") for kind in kinds]
        tokens += self.additional_special_tokens or []
        return frozenset(_text(token) for token in tokens if token is not None)


@dataclass(frozen=True, slots=True)
class HfFolder:
    """The files of a model but its weights and `tokenizer.json`. `files` are all that were found,
    with that one."""

    path: Path
    files: tuple[Path, ...]
    config: Config
    tokenizer_config: TokenizerConfig
    generation_config: GenerationConfig
    chat_template: str | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a folder. Raises `ModelFileInvalid` if a file is missing or invalid."""
        for name in REQUIRED_FILES:
            if not (path / name).is_file():
                needed = " and ".join(REQUIRED_FILES)
                remedy = "transformers' AutoTokenizer and AutoConfig write them (save_pretrained)"
                problem = f"there is no {name} in it; {needed} are needed: {remedy}"
                raise ModelFileInvalid(path, problem)
        tokenizer_config = _read_json(path / TOKENIZER_CONFIG, TokenizerConfig)
        template = path / CHAT_TEMPLATE
        return cls(
            path=path,
            files=tuple(
                each
                for name in (*REQUIRED_FILES, *OPTIONAL_FILES)
                if (each := path / name).is_file()
            ),
            config=_read_json(path / CONFIG, Config),
            tokenizer_config=tokenizer_config,
            generation_config=_read_json(path / GENERATION_CONFIG, GenerationConfig),
            chat_template=_read(template, _MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
            if template.is_file()
            else _default_template(tokenizer_config),
        )

    def describe(self, name: str) -> ModelFile:
        """Describe the model; sizes are 0 where the files do not say them. Raises
        `ModelFileInvalid`."""
        stamps = tuple(map(FileStamp.of, self.files))
        config = self.config.text
        return ModelFile(
            name=name,
            path=self.path,
            paths=self.files,
            architecture=config.model_type,
            model_class=self._model_class(),
            size_bytes=sum(stamp.size for stamp in stamps),
            num_parameters=0,
            vocabulary_size=config.vocab_size,
            embedding_size=config.hidden_size,
            trained_context_tokens=config.context_tokens,
            num_layers=config.num_layers,
            kv_bytes_per_token=0,
            chat_template=self.chat_template or None,
            title="",
            sampling_hints=self.generation_config.sampling_hints,
            stamps=stamps,
            decoder_start=self.config.decoder_start_token_id,
        )

    def _model_class(self) -> ModelClass:
        """The class by the name of the first architecture in transformers."""
        architecture = next(iter(self.config.architectures or ()), "")
        if self.config.is_encoder_decoder:
            return ModelClass.ENCODER_DECODER
        if architecture.endswith("ForSequenceClassification"):
            return ModelClass.RERANKER
        if architecture.endswith(("ForMaskedLM", "Model")):
            return ModelClass.ENCODER
        return ModelClass.DECODER


def _text(token: AddedToken | str) -> str:
    return token if isinstance(token, str) else token.content


def _default_template(config: TokenizerConfig) -> str | None:
    templates = config.chat_template
    if templates is None or isinstance(templates, str):
        return templates
    return next((each.template for each in templates if each.name == "default"), None)


def _read_json(path: Path, model: type[Model]) -> Model:
    """Read a file; the values of one that is missing are the defaults."""
    text = _read(path, _MAX_JSON_BYTES) if path.is_file() else b"{}"
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        problem = f"{where}: {first['msg']}" if where else str(first["msg"])
        raise ModelFileInvalid(path, problem[:300]) from None


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelFileInvalid(path, f"it cannot be read: {reason}") from None
    if len(content) > limit:
        raise ModelFileInvalid(path, f"it has more than {limit} bytes")
    return content


def read_tokenizer(folder: Path) -> bytes:
    """Read `tokenizer.json`. Raises `ModelFileInvalid` if it is too large or cannot be read."""
    return _read(folder / TOKENIZER, MAX_TOKENIZER_BYTES)
