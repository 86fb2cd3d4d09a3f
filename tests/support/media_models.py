"""Tiny projectors and text models with random weights, for pictures and sounds.

One pair for each way in which a projector differs: a fixed size, non-causal attention, a dynamic
size, M-RoPE, deepstack, audio, and pictures and audio in one file. Files of equal arguments are
equal.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from PIL import Image

from inference_svc.media.model import DecodedAudio, DecodedImage
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.pictures import save

WIDTH: Final = 128
"""The width of the text models; with one layer of deepstack a vector is twice as wide."""

MARKERS: Final = (
    *("<start_of_image>", "<end_of_image>", "[IMG_END]", "[IMG_BREAK]"),
    *("<|vision_start|>", "<|vision_end|>", "<|audio_bos|>", "<|audio_eos|>"),
)
"""The words that projectors write around a picture or a sound; control tokens of the models."""

TEXT_ARCHITECTURES: Final = {
    "janus_pro": "llama",
    "gemma3": "gemma3",
    "pixtral": "llama",
    "qwen2vl_merger": "qwen2vl",
    "qwen3vl_merger": "qwen3vl",
    "qwen2a": "llama",
    "gemma4uv": "gemma4",
    "gemma4ua": "gemma4",
}
"""The architecture of the text model for each type of projector."""

KINDS: Final = tuple(TEXT_ARCHITECTURES)
TILES: Final = "idefics3"
"""The type of a projector that cuts pictures into tiles, for `write_pair`."""

_TILE_MARKERS = ("\n\n", "<fake_token_around_image>", "<global-img>")
_GEMMA4 = ("gemma4uv", "gemma4ua")  # of pictures and of sounds, in one file
_GEMMA4_MARKERS = ("<|image>", "<image|>", "<|audio>", "<audio|>")
AUDIO_KINDS: Final = ("qwen2a", "gemma4ua")
SAMPLE_RATE: Final = 16_000
PATCH: Final = 14
AUDIO_POSITIONS: Final = 1500

_TOWER, _TOWER_FFN, _TOWER_HEADS = 32, 64, 2
_FFN, _LAYERS, _HEADS = 256, 2, 4
_HEAD = WIDTH // _HEADS
_IMAGE_SIZES = {"janus_pro": 84, "gemma3": 112, TILES: 56}
_IMAGE_SIZE = 112
_MEL_BINS = 80
_MERGED = 4 * _TOWER  # of 2 x 2 patches
_GEMMA4_PATCH = 3 * PATCH
_GEMMA4_FRAME = 640  # samples that are a vector
_GEMMA4_POSITIONS = 1120  # the most tokens of a picture, which may all be in a row
_GEMMA4_WINDOW = 32  # shorter than a picture
_PER_LAYER = 16


@dataclass(frozen=True)
class MediaPair:
    kind: str
    model: Path
    projector: Path


def write_pair(kind: str, folder: Path) -> MediaPair:
    markers = {TILES: _TILE_MARKERS, **dict.fromkeys(_GEMMA4, _GEMMA4_MARKERS)}
    model = write_text_model(
        TEXT_ARCHITECTURES.get(kind, "llama"),
        folder / f"{kind}.gguf",
        markers=markers.get(kind, MARKERS),
    )
    return MediaPair(kind, model, write_projector(kind, folder / f"mmproj-{kind}.gguf"))


def write_projector(
    kind: str,
    path: Path,
    *,
    width: int = WIDTH,
    seed: int = 0,
    audio_positions: int = AUDIO_POSITIONS,
) -> Path:
    """Write a projector of one of `KINDS` for a text model of a width. libmtmd aborts when it
    encodes with fewer than the usual positions of audio."""
    model = _Model(path, "clip", seed)
    if kind in _GEMMA4:
        _add_gemma4(model, width)
    elif kind in AUDIO_KINDS:
        _add_audio(model, kind, width, audio_positions)
    else:
        _add_vision(model, kind, width)
    return model.write()


def write_text_model(
    architecture: str, path: Path, *, seed: int = 0, markers: tuple[str, ...] = MARKERS
) -> Path:
    """Write a model with the vocabulary and template of the demo model, and markers as control
    tokens."""
    model = _Model(path, architecture, seed)
    writer = model.writer
    writer.add_name(f"random-{architecture}")
    writer.add_context_length(8192)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(_HEAD)
    if architecture == "gemma3":
        writer.add_sliding_window(1024)
    if architecture == "gemma4":
        _add_gemma4_text_keys(writer)
    if architecture in ("qwen2vl", "qwen3vl"):
        writer.add_rope_dimension_sections([6, 5, 5, 0])
    if architecture == "qwen3vl":
        writer.add_num_deepstack_layers(1)
    num_tokens = _copy_vocabulary(writer, markers)
    _add_text_weights(model, architecture, num_tokens)
    return model.write()


class _Model:
    """A file that is written, and the source of its weights."""

    def __init__(self, path: Path, architecture: str, seed: int) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self._path = path
        self._rng = np.random.default_rng(seed)

    def random(self, name: str, *shape: int, half: bool = False, gain: float = 1.0) -> None:
        """Add a tensor; the outputs of a matrix are about `gain` times as large as its inputs."""
        scale = gain / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
        values = self._rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        self.writer.add_tensor(name, values.astype(np.float16) if half else values)

    def linear(
        self, name: str, outputs: int, inputs: int, *, bias: bool = True, gain: float = 1.0
    ) -> None:
        self.random(f"{name}.weight", outputs, inputs, gain=gain)
        if bias:
            self.random(f"{name}.bias", outputs)

    def norm(self, name: str, size: int, *, bias: bool = False, value: float = 1.0) -> None:
        self.writer.add_tensor(f"{name}.weight", np.full(size, value, np.float32))
        if bias:
            self.random(f"{name}.bias", size)

    def write(self) -> Path:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self._path


# --- projectors -----------------------------------------------------------------------------------


def _add_tower_keys(
    writer: gguf.GGUFWriter, modality: str, width: int, *, num_layers: int = 1
) -> None:
    prefix = f"clip.{modality}"
    writer.add_bool(f"clip.has_{modality}_encoder", True)
    writer.add_uint32(f"{prefix}.embedding_length", _TOWER)
    writer.add_uint32(f"{prefix}.feed_forward_length", _TOWER_FFN)
    writer.add_uint32(f"{prefix}.block_count", num_layers)
    writer.add_uint32(f"{prefix}.projection_dim", width)
    writer.add_uint32(f"{prefix}.attention.head_count", _TOWER_HEADS)
    writer.add_float32(f"{prefix}.attention.layer_norm_epsilon", 1e-6)


def _add_kind_keys(writer: gguf.GGUFWriter, kind: str) -> None:
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", kind != "pixtral")
    writer.add_bool("clip.use_silu", kind == "pixtral")


def _add_image_keys(writer: gguf.GGUFWriter, size: int) -> None:
    writer.add_uint32("clip.vision.image_size", size)
    writer.add_uint32("clip.vision.patch_size", PATCH)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])


def _add_layer(model: _Model, prefix: str, kind: str) -> None:
    """Add a transformer layer, as the tower of each kind has it."""
    block, rms = f"{prefix}.blk.0.", kind == "pixtral"
    model.norm(f"{block}ln1", _TOWER, bias=not rms)
    model.norm(f"{block}ln2", _TOWER, bias=not rms)
    if kind == "qwen3vl_merger":
        model.linear(f"{block}attn_qkv", 3 * _TOWER, _TOWER)
    else:
        for name in ("attn_q", "attn_k", "attn_v"):
            has_bias = not rms and not (kind == "qwen2a" and name == "attn_k")
            model.linear(f"{block}{name}", _TOWER, _TOWER, bias=has_bias)
    model.linear(f"{block}attn_out", _TOWER, _TOWER, bias=not rms)
    if rms:
        model.linear(f"{block}ffn_gate", _TOWER_FFN, _TOWER, bias=False)
    model.linear(f"{block}ffn_up", _TOWER_FFN, _TOWER, bias=not rms)
    model.linear(f"{block}ffn_down", _TOWER, _TOWER_FFN, bias=not rms)


def _add_vision(model: _Model, kind: str, width: int) -> None:
    size = _IMAGE_SIZES.get(kind, _IMAGE_SIZE)
    _add_kind_keys(model.writer, kind)
    _add_tower_keys(model.writer, "vision", width)
    _add_image_keys(model.writer, size)
    model.random("v.patch_embd.weight", _TOWER, 3, PATCH, PATCH)
    if kind in ("janus_pro", "gemma3", "qwen3vl_merger", TILES):
        model.random("v.position_embd.weight", (size // PATCH) ** 2, _TOWER)
    if kind != "pixtral":
        model.norm("v.post_ln", _TOWER, bias=True)
    _add_layer(model, "v", kind)
    {
        "janus_pro": _add_janus_pro,
        "gemma3": _add_gemma3,
        "pixtral": _add_pixtral,
        "qwen2vl_merger": _add_qwen2vl,
        "qwen3vl_merger": _add_qwen3vl,
        TILES: _add_idefics3,
    }[kind](model, width)


def _add_janus_pro(model: _Model, width: int) -> None:
    model.linear("mm.0", width, _TOWER)
    model.linear("mm.1", width, width)


def _add_gemma3(model: _Model, width: int) -> None:
    model.writer.add_uint32("clip.vision.projector.scale_factor", 2)
    model.norm("mm.soft_emb_norm", _TOWER)
    model.random("mm.input_projection.weight", _TOWER, width)


def _add_pixtral(model: _Model, width: int) -> None:
    model.linear("mm.1", width, _TOWER, bias=False)
    model.linear("mm.2", width, width, bias=False)
    model.random("v.token_embd.img_break", width)


def _add_qwen2vl(model: _Model, width: int) -> None:
    model.random("v.patch_embd.weight.1", _TOWER, 3, PATCH, PATCH)
    model.linear("mm.0", _MERGED, _MERGED)
    model.linear("mm.2", width, _MERGED)


def _add_qwen3vl(model: _Model, width: int) -> None:
    _add_qwen2vl(model, width)
    model.random("v.patch_embd.bias", _TOWER)
    model.norm("v.deepstack.0.norm", _MERGED, bias=True)
    model.linear("v.deepstack.0.fc1", _MERGED, _MERGED)
    model.linear("v.deepstack.0.fc2", width, _MERGED)


def _add_idefics3(model: _Model, width: int) -> None:
    model.writer.add_uint32("clip.vision.projector.scale_factor", 2)
    model.writer.add_uint32("clip.vision.preproc_image_size", 112)
    model.linear("mm.model.fc", width, _MERGED, bias=False)


def _add_audio(model: _Model, kind: str, width: int, positions: int) -> None:
    _add_kind_keys(model.writer, kind)
    _add_tower_keys(model.writer, "audio", width)
    model.writer.add_uint32("clip.audio.num_mel_bins", _MEL_BINS)
    model.random("a.position_embd.weight", positions, _TOWER)
    for number, inputs in ((1, _MEL_BINS), (2, _TOWER)):
        model.random(f"a.conv1d.{number}.weight", _TOWER, inputs, 3, half=True, gain=8.0)
        model.random(f"a.conv1d.{number}.bias", _TOWER, 1, gain=0.1)
    _add_layer(model, "a", kind)
    model.norm("a.post_ln", _TOWER, bias=True)
    model.linear("mm.a.fc", width, _TOWER)


def _add_gemma4(model: _Model, width: int) -> None:
    """The unified form of Gemma 4, without layers."""
    for kind, modality in zip(_GEMMA4, ("vision", "audio"), strict=True):
        model.writer.add_string(f"clip.{modality}.projector_type", kind)
        _add_tower_keys(model.writer, modality, width, num_layers=0)
    _add_image_keys(model.writer, _IMAGE_SIZE)
    model.writer.add_uint32("clip.audio.num_mel_bins", _GEMMA4_FRAME)
    pixels = 3 * _GEMMA4_PATCH**2
    model.linear("v.patch_embd", _TOWER, pixels)
    for number, size in ((1, pixels), (2, _TOWER), (3, _TOWER)):
        model.norm(f"v.patch_norm.{number}", size, bias=True)
    model.random("v.position_embd.weight", 2, _GEMMA4_POSITIONS, _TOWER)
    model.linear("mm.input_projection", width, _TOWER, bias=False)
    model.linear("mm.a.input_projection", width, _GEMMA4_FRAME, bias=False)


# --- text models ----------------------------------------------------------------------------------


def _copy_vocabulary(writer: gguf.GGUFWriter, markers: tuple[str, ...]) -> int:
    fields = gguf.GGUFReader(BUNDLED_PATH).fields

    def value(key: str) -> Any:
        return fields[f"tokenizer.{key}"].contents()

    tokens = [*value("ggml.tokens"), *markers]
    types = [*value("ggml.token_type"), *(int(gguf.TokenType.CONTROL) for _ in markers)]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(value("ggml.model"))
    writer.add_tokenizer_pre(value("ggml.pre"))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(value("ggml.merges"))
    writer.add_bos_token_id(value("ggml.bos_token_id"))
    writer.add_eos_token_id(value("ggml.eos_token_id"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(value("chat_template"))
    return len(tokens)


def _add_gemma4_text_keys(writer: gguf.GGUFWriter) -> None:
    """Layers with a window, in which vectors of a picture attend to each other, alternate with
    causal ones; all have input of their own, by token id."""
    writer.add_sliding_window(_GEMMA4_WINDOW)
    writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(_LAYERS)])
    writer.add_key_length_swa(_HEAD)
    writer.add_value_length_swa(_HEAD)
    writer.add_rope_dimension_count_swa(_HEAD)
    writer.add_rope_freq_base_swa(10_000.0)
    writer.add_embedding_length_per_layer_input(_PER_LAYER)


def _add_text_weights(model: _Model, architecture: str, num_tokens: int) -> None:
    model.random("token_embd.weight", num_tokens, WIDTH)
    model.random("output.weight", num_tokens, WIDTH)
    model.norm("output_norm", WIDTH)
    is_gemma = architecture in ("gemma3", "gemma4")
    if architecture == "gemma4":
        model.norm("rope_freqs", _HEAD // 2)
        model.random("per_layer_token_embd.weight", num_tokens, _LAYERS * _PER_LAYER)
        model.linear("per_layer_model_proj", _LAYERS * _PER_LAYER, WIDTH, bias=False)
        model.norm("per_layer_proj_norm", _PER_LAYER)
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        model.norm(f"{block}attn_norm", WIDTH)
        model.norm(f"{block}ffn_norm", WIDTH)
        has_bias = architecture == "qwen2vl"
        for name in ("attn_q", "attn_k", "attn_v"):
            # Sharp attention, so that the output depends on single vectors of a picture.
            gain = 6.0 if name == "attn_q" else 1.0
            model.linear(f"{block}{name}", WIDTH, WIDTH, bias=has_bias, gain=gain)
        if is_gemma or architecture == "qwen3vl":
            # Gemma 4 does not divide by the root of the width.
            model.norm(f"{block}attn_q_norm", _HEAD, value=0.5 if architecture == "gemma4" else 3.0)
            model.norm(f"{block}attn_k_norm", _HEAD)
        if architecture == "gemma4":
            model.linear(f"{block}inp_gate", _PER_LAYER, WIDTH, bias=False)
            model.linear(f"{block}proj", WIDTH, _PER_LAYER, bias=False)
            model.norm(f"{block}post_norm", WIDTH)
        if is_gemma:
            model.norm(f"{block}post_attention_norm", WIDTH)
            model.norm(f"{block}post_ffw_norm", WIDTH)
        model.linear(f"{block}attn_output", WIDTH, WIDTH, bias=False)
        model.linear(f"{block}ffn_gate", _FFN, WIDTH, bias=False)
        model.linear(f"{block}ffn_up", _FFN, WIDTH, bias=False)
        model.linear(f"{block}ffn_down", WIDTH, _FFN, bias=False)


# --- pictures and sounds --------------------------------------------------------------------------


def picture(width: int, height: int, *, seed: int = 0) -> DecodedImage:
    """A picture of a few coloured fields, others for another seed."""
    rng = np.random.default_rng(seed)
    fields = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    rows = np.arange(height) * len(fields) // height
    columns = np.arange(width) * fields.shape[1] // width
    return DecodedImage(width, height, fields[rows][:, columns].tobytes())


def png_file(image: DecodedImage, **options: Any) -> bytes:
    return save(Image.frombytes("RGB", (image.width, image.height), image.rgb), **options)


def sound(seconds: float, *, seed: int = 0) -> DecodedAudio:
    times = np.arange(max(2, int(seconds * SAMPLE_RATE))) / SAMPLE_RATE
    tone = 0.5 * np.sin(2 * np.pi * (220 + 190 * seed) * times)
    return DecodedAudio(tone.astype("<f4").tobytes(), SAMPLE_RATE)
