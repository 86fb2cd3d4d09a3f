"""Generates a projector with random weights: a vision transformer before any text model.

Its vectors are noise, as fast as those of a trained one of the same shape.
"""

from pathlib import Path
from typing import Final

import gguf
import numpy as np

PICTURE_PIXELS: Final = 224
"""Width and height to which pictures are scaled."""
PATCH_PIXELS: Final = 16
PICTURE_TOKENS: Final = (PICTURE_PIXELS // PATCH_PIXELS) ** 2
_WIDTH, _FFN_WIDTH, _LAYERS, _HEADS = 384, 1536, 6, 6


def write_projector(target: Path, text_width: int) -> None:
    """Write a projector (janus_pro) for a text model of this width, from a fixed seed."""
    writer = gguf.GGUFWriter(target, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "janus_pro")
    writer.add_bool("clip.use_gelu", True)
    for name, value in (
        ("image_size", PICTURE_PIXELS),
        ("patch_size", PATCH_PIXELS),
        ("embedding_length", _WIDTH),
        ("feed_forward_length", _FFN_WIDTH),
        ("block_count", _LAYERS),
        ("projection_dim", text_width),
        ("attention.head_count", _HEADS),
    ):
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    _add_weights(writer, text_width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text_width(model: Path) -> int:
    """The width of the vectors that a text model reads."""
    fields = gguf.GGUFReader(model).fields
    architecture = fields["general.architecture"].contents()
    return int(fields[f"{architecture}.embedding_length"].contents())


def _add_weights(writer: gguf.GGUFWriter, text_width: int) -> None:
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> None:
        drawn = rng.standard_normal(shape, dtype=np.float32) * 0.05
        writer.add_tensor(f"{name}.weight", drawn.astype(np.float16))

    def linear(name: str, rows: int, columns: int) -> None:
        weights(name, rows, columns)
        writer.add_tensor(f"{name}.bias", np.zeros(rows, np.float32))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(_WIDTH, np.float32))

    weights("v.patch_embd", _WIDTH, 3, PATCH_PIXELS, PATCH_PIXELS)
    positions = rng.standard_normal((PICTURE_TOKENS, _WIDTH), dtype=np.float32) * 0.05
    writer.add_tensor("v.position_embd.weight", positions)
    for layer in range(_LAYERS):
        block = f"v.blk.{layer}."
        norm(f"{block}ln1")
        norm(f"{block}ln2")
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            linear(f"{block}{name}", _WIDTH, _WIDTH)
        linear(f"{block}ffn_up", _FFN_WIDTH, _WIDTH)
        linear(f"{block}ffn_down", _WIDTH, _FFN_WIDTH)
    norm("v.post_ln")
    linear("mm.0", text_width, _WIDTH)
    linear("mm.1", text_width, text_width)
