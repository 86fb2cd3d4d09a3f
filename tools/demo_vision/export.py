"""Writes a trained projector as a GGUF file of the architecture `clip` with a `janus_pro` head."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from tools.demo_model.network import Weights
from tools.demo_vision.network import DEVIATION, EPSILON, MEAN, TowerShape
from tools.demo_vision.pictures import SIZE

_LAYER_NAMES = {"attn_output": "attn_out"}
_NAMES = {"patch": "v.patch_embd", "post_ln": "v.post_ln", "mm.0": "mm.0", "mm.1": "mm.1"}


def export(checkpoint: Path, out: Path, file_type: str) -> None:
    """Write the projector; the matrices of its layers are `F16` or `Q8_0`.

    llama.cpp wants the patch matrix in F16 or F32, biases, norms and places in F32.
    """
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    shape = TowerShape(**saved["settings"]["shape"])
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out, "clip")
    writer.add_type("mmproj")
    writer.add_name("demo-vision")
    writer.add_description("Lets the Corral demo model see simple pictures")
    writer.add_author("The Corral authors")
    writer.add_license("apache-2.0")
    _write_shape(writer, shape)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{file_type}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, values in _tensors(saved["weights"], shape):
        _add(writer, name, values, file_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: gguf.GGUFWriter, shape: TowerShape) -> None:
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "janus_pro")
    writer.add_bool("clip.use_gelu", True)
    vision = {
        "image_size": SIZE,
        "patch_size": shape.patch,
        "embedding_length": shape.width,
        "feed_forward_length": shape.d_ff,
        "block_count": shape.num_layers,
        "projection_dim": shape.out,
        "attention.head_count": shape.num_heads,
    }
    for key, value in vision.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", EPSILON)
    writer.add_array("clip.vision.image_mean", [MEAN] * 3)
    writer.add_array("clip.vision.image_std", [DEVIATION] * 3)


def _tensors(weights: Weights, shape: TowerShape) -> list[tuple[str, NDArray[np.float32]]]:
    """All tensors by their names in llama.cpp."""
    tensors = [("v.position_embd.weight", weights["position"].numpy())]
    for name, stored in _NAMES.items():
        values = weights[name].numpy()
        if name == "patch":
            values = values.reshape(shape.width, 3, shape.patch, shape.patch)
        tensors += [
            (f"{stored}.weight", values),
            (f"{stored}.bias", weights[f"{name}.bias"].numpy()),
        ]
    for index in range(shape.num_layers):
        for name in (*shape.matrix_sizes(), "ln1", "ln2"):
            stored = f"v.blk.{index}.{_LAYER_NAMES.get(name, name)}"
            tensors.append((f"{stored}.weight", weights[name][index].numpy()))
            tensors.append((f"{stored}.bias", weights[f"{name}.bias"][index].numpy()))
    return tensors


def _add(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32], file_type: str) -> None:
    if values.ndim == 1 or name == "v.position_embd.weight":
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType["F16" if values.ndim == 4 else file_type]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
