"""Reads the metadata of a model from its GGUF header: class, sizes, context, chat template."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from inference_svc.models.file_identity import FileStamp
from inference_svc.models.projector_file import ProjectorFile
from model_files.ggml_types import TENSOR_LAYOUTS, KvType
from model_files.gguf import GgufHeader, ModelFileInvalid, read_header
from svc_kit.errors import ModelCannot

_SAMPLING = "general.sampling."
_F16_BYTES = 2
_MAX_LAYERS = 4096
_MAX_SPLIT_FILES = 999
_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_ENCODERS = frozenset(
    {
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "eurobert",
        "jina-bert-v2",
        "jina-bert-v3",
        "gemma-embedding",
        "llama-embed",
        "t5encoder",
    }
)
_ENCODER_DECODERS = frozenset({"t5"})
_DIFFUSION = "a diffusion language model, which does not generate token by token"
_NOT_LANGUAGE_MODELS = {
    "clip": "an image or audio projector (mmproj), not a language model",
    "wavtokenizer-dec": "a vocoder, not a language model",
    "cogvlm": "an architecture of which llama.cpp returns the logits of another token",
    # llama.cpp has no KV cache for these; generating like a decoder would abort the process.
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
}
ONE_SEQUENCE = frozenset({"arwkv7", "plamo2"})
"""Architectures of which llama.cpp computes several sequences in one call wrongly."""
_SOFTMAX_RANKS = frozenset({"qwen3", "qwen3vl"})
_OUTPUT = "output.weight"
_RANK_HEADS = frozenset({"cls.weight", "cls.output.weight"})


class ModelClass(StrEnum):
    """Class of a model, which determines the supported operations."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder_decoder"
    RERANKER = "reranker"


class Pooling(StrEnum):
    """How the token vectors of an input are pooled: mean, first token, last token, or the outputs
    of a rank head."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    RANK = "rank"


# llama.cpp's values of `<architecture>.pooling_type`; 0 means none.
_POOLING = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST, 4: Pooling.RANK}


class FileRole(StrEnum):
    """Purpose of a GGUF file."""

    MODEL = "model"
    ADAPTER = "adapter"
    PROJECTOR = "projector"
    LATER_PART = "later part of a split model"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Description of a model file.

    `paths` are all files of a split model, `path` is the first. `kv_bytes_per_token` is the KV
    cache size of one token at 16 bits, an upper bound for sliding-window layers. `pooling` is that
    of the file. `is_causal` is whether attention is causal. `gives_probabilities` is whether the
    scores of the rank head are probabilities. `sampling_hints` are the values of
    `general.sampling.*`. `stamps` are those of `paths` when they were read. `decoder_start` is the
    token with which the decoder of an encoder-decoder model starts; None is the BOS token.
    Logits that llama.cpp computes are to be multiplied by `logit_scale`. `projector` encodes its
    pictures and sounds, `draft` is its draft model. `tensor_types` are the types of the weights
    with their shares of all parameters, the largest first. Of a folder in Hugging Face's format,
    whose model runs elsewhere, `path` is the folder, and sizes are 0 that its files do not say. A
    file with a `problem` cannot be used; only its name is known.
    """

    name: str
    path: Path
    paths: tuple[Path, ...]
    architecture: str
    model_class: ModelClass
    size_bytes: int
    num_parameters: int
    vocabulary_size: int
    embedding_size: int
    trained_context_tokens: int
    num_layers: int
    kv_bytes_per_token: int
    chat_template: str | None
    title: str
    pooling: Pooling | None = None
    is_causal: bool = True
    rank_template: str | None = None
    gives_probabilities: bool = False
    sampling_hints: Mapping[str, str | float] = field(default_factory=dict)
    stamps: tuple[FileStamp, ...] = ()
    decoder_start: int | None = None
    logit_scale: float = 1.0
    projector: ProjectorFile | None = None
    draft: "ModelFile | None" = None
    tensor_types: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def quantization(self) -> str:
        """The type of most weights; empty if it is unknown."""
        return next(iter(self.tensor_types), "").partition("?")[0]

    @property
    def generates(self) -> bool:
        return self.model_class in (ModelClass.DECODER, ModelClass.ENCODER_DECODER)

    @property
    def has_source(self) -> bool:
        """Whether an encoder reads the prompt, and the decoder generates another text."""
        return self.model_class is ModelClass.ENCODER_DECODER

    @property
    def max_slots(self) -> int | None:
        """The number of sequences that can be computed at once, None for any."""
        return 1 if self.architecture in ONE_SEQUENCE else None

    def with_kv_types(self, key: KvType, value: KvType) -> "ModelFile":
        """Return a copy with the KV cache size of these types."""
        bits = (key.bits + value.bits) / 2
        scaled = math.ceil(self.kv_bytes_per_token * bits / KvType.F16.bits)
        return replace(self, kv_bytes_per_token=scaled)

    def check_generates(self) -> None:
        """Raise `ModelCannot` unless the model generates text."""
        if not self.generates:
            self._refuse("generate")

    def check_chats(self) -> None:
        """Raise `ModelCannot` unless the model continues a conversation."""
        if self.model_class is not ModelClass.DECODER:
            self._refuse("chat")

    def check_embeds(self) -> None:
        """Raise `ModelCannot` if the model has no embedding output."""
        if self.model_class in (ModelClass.RERANKER, ModelClass.ENCODER_DECODER):
            self._refuse("embed")

    def check_ranks(self) -> None:
        """Raise `ModelCannot` unless the model has a rank head."""
        if self.model_class is not ModelClass.RERANKER:
            self._refuse("rerank, for it has no rank head")

    def _refuse(self, operation: str) -> NoReturn:
        raise ModelCannot(model=self.name, model_class=self.model_class.value, operation=operation)


def describe_model(path: Path, name: str) -> ModelFile:
    """Describe the model whose (first) file is `path`.

    Raises:
        ModelFileInvalid: the file is damaged, a part is missing, or it is no language model.
    """
    parts = split_paths(path)
    stamps = tuple(map(FileStamp.of, parts))
    headers = [read_header(part, keep_tensors=True) for part in parts]
    first = headers[0]
    _check_split(headers)
    architecture = _architecture(first)
    num_layers = _required(first, f"{architecture}.block_count")
    if num_layers > _MAX_LAYERS:
        raise ModelFileInvalid(path, f"it claims {num_layers} layers; at most {_MAX_LAYERS}")
    pooling = _pooling(first, architecture)
    model_class = _model_class(first, architecture)
    if pooling is Pooling.RANK:
        if not any(tensor.name in _RANK_HEADS for part in headers for tensor in part.tensors):
            raise ModelFileInvalid(path, "it ranks (pooling_type 4) but has no rank head")
        model_class = ModelClass.RERANKER
    return ModelFile(
        name=name,
        path=path,
        paths=tuple(header.path for header in headers),
        architecture=architecture,
        model_class=model_class,
        size_bytes=sum(header.file_bytes for header in headers),
        num_parameters=sum(header.num_parameters for header in headers),
        vocabulary_size=_vocabulary_size(first, architecture),
        embedding_size=_required(first, f"{architecture}.embedding_length"),
        trained_context_tokens=_required(first, f"{architecture}.context_length"),
        num_layers=num_layers,
        kv_bytes_per_token=_kv_bytes_per_token(
            first,
            architecture,
            first.integer(f"{architecture}.decoder_block_count") or num_layers,
        ),
        chat_template=first.text("tokenizer.chat_template") or None,
        title=first.text("general.name") or "",
        pooling=pooling,
        is_causal=_is_causal(first, architecture),
        rank_template=first.text("tokenizer.chat_template.rerank") or None,
        gives_probabilities=architecture in _SOFTMAX_RANKS,
        sampling_hints=_sampling_hints(first),
        stamps=stamps,
        decoder_start=first.integer(f"{architecture}.decoder_start_token_id"),
        logit_scale=_logit_scale(headers, architecture),
        tensor_types=_tensor_types(headers),
    )


def unusable_model(path: Path, name: str, problem: str) -> ModelFile:
    """Describe a model whose file cannot be used."""
    return replace(fileless_model(name), path=path, paths=(path,), problem=problem)


def fileless_model(name: str) -> ModelFile:
    """Describe the model of an engine of others of which nothing is here, nor its tokenizer."""
    return ModelFile(
        name=name,
        path=Path(),
        paths=(),
        architecture="",
        model_class=ModelClass.DECODER,
        size_bytes=0,
        num_parameters=0,
        vocabulary_size=0,
        embedding_size=0,
        trained_context_tokens=0,
        num_layers=0,
        kv_bytes_per_token=0,
        chat_template=None,
        title="",
    )


def file_role(path: Path) -> FileRole:
    """Return the purpose of a GGUF file. Raises `ModelFileInvalid`."""
    header = read_header(path)
    if header.text("general.type") == "adapter":
        return FileRole.ADAPTER
    if header.text("general.architecture") in _NOT_LANGUAGE_MODELS:
        return FileRole.PROJECTOR
    match = _SPLIT_NAME.fullmatch(path.name)
    return FileRole.LATER_PART if match and int(match["number"]) > 1 else FileRole.MODEL


def split_paths(path: Path) -> tuple[Path, ...]:
    """Return all files of a split model ("x-00001-of-00003.gguf"), else the path alone.

    Raises:
        ModelFileInvalid: `path` is not the first part, or the number of parts is invalid.
    """
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    if not 0 < count <= _MAX_SPLIT_FILES:
        raise ModelFileInvalid(path, f"its name claims {count} parts")
    if int(match["number"]) != 1:
        first = f"{match['stem']}-00001-of-{match['count']}.gguf"
        raise ModelFileInvalid(path, f"a later part of a split model; name the first, {first}")
    return tuple(
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    )


def default_name(path: Path) -> str:
    """Return the default name of a model: its file name without the extension."""
    match = _SPLIT_NAME.fullmatch(path.name)
    return match["stem"] if match else path.name.removesuffix(".gguf")


def _check_split(headers: list[GgufHeader]) -> None:
    for number, header in enumerate(headers):
        claimed = header.integer("split.count") or 1
        if claimed != len(headers):
            raise ModelFileInvalid(
                header.path,
                f"a model split into {claimed} files, of which {len(headers)} are named",
            )
        if claimed > 1 and header.integer("split.no") != number:
            raise ModelFileInvalid(header.path, "its number differs from the one in its name")


def _architecture(header: GgufHeader) -> str:
    if header.text("general.type") == "adapter":
        raise ModelFileInvalid(header.path, "a LoRA adapter, not a model")
    architecture = header.text("general.architecture")
    if not architecture:
        raise ModelFileInvalid(header.path, "general.architecture is missing")
    if architecture in _NOT_LANGUAGE_MODELS:
        raise ModelFileInvalid(header.path, _NOT_LANGUAGE_MODELS[architecture])
    return architecture


def _model_class(header: GgufHeader, architecture: str) -> ModelClass:
    if architecture in _ENCODER_DECODERS:
        return ModelClass.ENCODER_DECODER
    if not _is_causal(header, architecture):
        return ModelClass.ENCODER
    return ModelClass.DECODER


def _logit_scale(parts: Sequence[GgufHeader], architecture: str) -> float:
    """The first form of T5 uses the token embeddings as its output, and divides by the root of
    their width, which llama.cpp does not."""
    if architecture != "t5" or any(t.name == _OUTPUT for part in parts for t in part.tensors):
        return 1.0
    return float(_required(parts[0], "t5.embedding_length") ** -0.5)


def _tensor_types(parts: Sequence[GgufHeader]) -> dict[str, float]:
    """Names of unknown types begin with "?"."""
    counts: Counter[str] = Counter()
    for tensor in (tensor for part in parts for tensor in part.tensors):
        layout = TENSOR_LAYOUTS.get(tensor.type_id)
        name = layout.name if layout is not None else f"?{tensor.type_id}"
        counts[name] += math.prod(tensor.shape)
    total = max(1, counts.total())
    return {name: count / total for name, count in counts.most_common()}


def _is_causal(header: GgufHeader, architecture: str) -> bool:
    causal = header.metadata.get(f"{architecture}.attention.causal")
    return architecture not in _ENCODERS and causal is not False


def _pooling(header: GgufHeader, architecture: str) -> Pooling | None:
    number = header.integer(f"{architecture}.pooling_type") or 0
    if number and number not in _POOLING:
        raise ModelFileInvalid(header.path, f"unknown pooling type {number}")
    return _POOLING.get(number)


def _sampling_hints(header: GgufHeader) -> dict[str, str | float]:
    return {
        key.removeprefix(_SAMPLING): value
        for key, value in header.metadata.items()
        if key.startswith(_SAMPLING) and isinstance(value, str | float | int)
    }


def _required(header: GgufHeader, key: str) -> int:
    value = header.integer(key)
    if not value:
        raise ModelFileInvalid(header.path, f"{key} is missing or zero")
    return value


def _vocabulary_size(header: GgufHeader, architecture: str) -> int:
    size = header.length("tokenizer.ggml.tokens") or header.integer(f"{architecture}.vocab_size")
    if not size:
        raise ModelFileInvalid(header.path, "it has no vocabulary")
    return size


def _kv_bytes_per_token(header: GgufHeader, architecture: str, num_layers: int) -> int:
    heads = header.integers(f"{architecture}.attention.head_count") or (0,)
    kv_heads = header.integers(f"{architecture}.attention.head_count_kv") or heads
    embedding = _required(header, f"{architecture}.embedding_length")
    head_size = embedding // max(1, *heads)
    key_size = header.integer(f"{architecture}.attention.key_length") or head_size
    value_size = header.integer(f"{architecture}.attention.value_length") or head_size
    total_heads = kv_heads[0] * num_layers if len(kv_heads) == 1 else sum(kv_heads[:num_layers])
    return total_heads * (key_size + value_size) * _F16_BYTES
