"""Checkpoints of real architectures with random weights, small enough to be made anew for each test run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import ByteLevelBPETokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<image>"]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.6,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "pad_token_id": None,
}
"""Weights as large as these make each token depend on what stands before it."""


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Of some words and all bytes."""
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog and says hello " * 4], 320)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, eos_token="<|im_end|>")
    wrapped.add_special_tokens({"additional_special_tokens": SPECIAL})
    wrapped.chat_template = CHATML
    return wrapped


def text_model(folder: Path, kind: str = "llama", **larger: int) -> Path:
    """A model of the sizes above, or of ``larger`` ones.

    ``llama``: attention to everything; ``gemma3``: every other layer sees the last 24 tokens only; ``mistral``: all
    layers see the last 24 tokens only."""
    words = tokenizer()
    sizes = {**SIZES, "vocab_size": len(words), "eos_token_id": words.eos_token_id, **larger}
    torch.manual_seed(7)
    if kind == "llama":
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    elif kind == "mistral":
        model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, sliding_window=24))
    else:
        layers = ["sliding_attention", "full_attention"]
        config = transformers.Gemma3TextConfig(**sizes, head_dim=8, sliding_window=24, layer_types=layers)
        model = transformers.Gemma3ForCausalLM(config)
    return _saved(folder, model, words)


def picture_model(folder: Path) -> Path:
    """LLaVA: CLIP sees 8 x 8 pixels as 16 patches, and two layers of Llama read them."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    words = tokenizer()
    sizes = {**SIZES, "vocab_size": len(words), "eos_token_id": words.eos_token_id}
    seeing = {key: sizes[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**seeing, num_attention_heads=4, image_size=8, patch_size=2),
        text_config=transformers.LlamaConfig(**sizes),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    torch.manual_seed(7)
    model = transformers.LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = words.eos_token_id
    square = {"height": 8, "width": 8}
    processor = transformers.LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=square, crop_size=square),
        tokenizer=words,
        patch_size=2,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHATML,
    )
    return _saved(folder, model, processor)


def picture(colour: tuple[int, int, int], kind: str = "PNG") -> bytes:
    """An encoded picture of one colour with a black corner."""
    image = Image.new("RGB", (20, 16), colour)
    image.paste((0, 0, 0), (0, 0, 6, 6))
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def _saved(folder: Path, model: Any, reader: Any) -> Path:
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    return folder
