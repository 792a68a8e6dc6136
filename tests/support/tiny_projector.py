"""Projectors for llama.cpp (``mmproj``) with random weights, small enough to be made anew for each test run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np

HIDDEN = 32
PATCH = 4


def tiny_projector(
    file: Path, width: int, kind: Literal["mlp", "gemma3"] = "mlp", image_size: int = 16, scale_factor: int = 2
) -> Path:
    """A vision encoder of two layers for a language model whose embeddings have ``width`` values.

    ``mlp``, LLaVA's: one token for each patch of 4 x 4 pixels. ``gemma3``: one for ``scale_factor`` squared of them,
    and the tokens of a picture are read both ways.
    """
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_type("mmproj")
    writer.add_bool(gguf.Keys.Clip.HAS_VISION_ENCODER, True)
    writer.add_string(gguf.Keys.Clip.PROJECTOR_TYPE, kind)
    keys = gguf.Keys.ClipVision
    sizes = {
        keys.IMAGE_SIZE: image_size,
        keys.PATCH_SIZE: PATCH,
        keys.EMBEDDING_LENGTH: HIDDEN,
        keys.FEED_FORWARD_LENGTH: 2 * HIDDEN,
        keys.PROJECTION_DIM: width,
        keys.BLOCK_COUNT: 2,
        keys.Attention.HEAD_COUNT: 4,
        keys.Projector.SCALE_FACTOR: scale_factor,
    }
    for key, value in sizes.items():
        writer.add_uint32(key, value)
    writer.add_float32(keys.Attention.LAYERNORM_EPS, 1e-5)
    writer.add_array(keys.IMAGE_MEAN, [0.5] * 3)
    writer.add_array(keys.IMAGE_STD, [0.5] * 3)
    writer.add_bool(keys.USE_GELU, True)
    for name, tensor in _tensors(width, kind, (image_size // PATCH) ** 2).items():
        writer.add_tensor(name, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _tensors(width: int, kind: str, patches: int) -> dict[str, Any]:
    random = np.random.default_rng(0)

    def linear(name: str, into: int, out: int, scale: float = 0.3) -> dict[str, Any]:
        return {
            f"{name}.weight": random.standard_normal((out, into)) * scale,
            f"{name}.bias": random.standard_normal(out) * scale,
        }

    def norm(name: str) -> dict[str, Any]:
        return {f"{name}.weight": np.ones(HIDDEN), f"{name}.bias": np.zeros(HIDDEN)}

    tensors: dict[str, Any] = {"v.patch_embd.weight": random.standard_normal((HIDDEN, 3, PATCH, PATCH)) * 0.3}
    for layer in ("v.blk.0", "v.blk.1"):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors |= linear(f"{layer}.{name}", HIDDEN, HIDDEN)
        tensors |= norm(f"{layer}.ln1") | norm(f"{layer}.ln2")
        tensors |= linear(f"{layer}.ffn_up", HIDDEN, 2 * HIDDEN) | linear(f"{layer}.ffn_down", 2 * HIDDEN, HIDDEN)
    if kind == "mlp":
        tensors["v.class_embd"] = random.standard_normal(HIDDEN) * 0.3
        tensors["v.position_embd.weight"] = random.standard_normal((patches + 1, HIDDEN)) * 0.3
        tensors |= norm("v.pre_ln") | linear("mm.0", HIDDEN, width) | linear("mm.2", width, width, 0.05)
    else:
        tensors["v.patch_embd.bias"] = np.zeros(HIDDEN)
        tensors["v.position_embd.weight"] = random.standard_normal((patches, HIDDEN)) * 0.3
        tensors |= norm("v.post_ln")
        tensors["mm.input_projection.weight"] = random.standard_normal((HIDDEN, width)) * 0.3
        tensors["mm.soft_emb_norm.weight"] = np.ones(HIDDEN)
    return tensors
