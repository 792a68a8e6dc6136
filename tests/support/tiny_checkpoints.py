"""Checkpoints of real architectures with random weights, small enough to be made anew for each test run."""

from __future__ import annotations

import io
from collections.abc import Sequence
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


def text_model(folder: Path, kind: str = "llama", **larger: float) -> Path:
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


def picture_model(folder: Path, **larger: float) -> Path:
    """LLaVA: CLIP sees 8 x 8 pixels as 16 patches, and two layers of Llama read them; of ``SIZES`` or ``larger``."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    words = tokenizer()
    sizes = {**SIZES, "vocab_size": len(words), "eos_token_id": words.eos_token_id, **larger}
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


def tiled_model(folder: Path, **larger: float) -> Path:
    """Idefics3, which SmolVLM is of: pictures are cut into tiles of 16 x 16 pixels, four tokens each, and one of the
    whole; of ``SIZES`` or ``larger``."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    words = tokenizer()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    words.add_special_tokens({"additional_special_tokens": ["<fake_token_around_image>", "<global-img>", *tiles]})
    edge = {"longest_edge": 16}
    processor = transformers.Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(size={"longest_edge": 32}, max_image_size=edge),
        tokenizer=words,
        image_seq_len=4,
        chat_template=CHATML,
    )
    sizes = {**SIZES, "vocab_size": len(words), "eos_token_id": words.eos_token_id, **larger}
    seeing = {key: sizes[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    config = transformers.Idefics3Config(
        vision_config={**seeing, "num_attention_heads": 4, "image_size": 16, "patch_size": 4, "initializer_range": 0.2},
        text_config=transformers.LlamaConfig(**sizes),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=None,
    )
    torch.manual_seed(7)
    model = transformers.Idefics3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = words.eos_token_id
    return _saved(folder, model, processor)


class TurnedModel:
    """A Qwen2-VL, whose positions have three axes, and the work of its processor.

    The library's own processor needs torchvision for videos, which is not installed with a torch for the CPU.
    """

    model_input_names: tuple[str, ...] = ("input_ids", "pixel_values", "image_grid_thw", "mm_token_type_ids")

    def __init__(self) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer = words = tokenizer()
        named = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
        words.add_special_tokens({"additional_special_tokens": named})
        start, end, self.image_token_id, video = words.convert_tokens_to_ids(named)
        sizes = {**SIZES, "vocab_size": len(words), "eos_token_id": words.eos_token_id}
        turned = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
        seeing = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
        config = transformers.Qwen2VLConfig(
            text_config={**sizes, "rope_parameters": turned},
            vision_config=seeing,
            image_token_id=self.image_token_id,
            video_token_id=video,
            vision_start_token_id=start,
            vision_end_token_id=end,
        )
        torch.manual_seed(7)
        self.model = transformers.Qwen2VLForConditionalGeneration(config).eval()
        self.image_processor = Qwen2VLImageProcessorPil(patch_size=4, min_pixels=64, max_pixels=1024)

    def __call__(self, text: list[str], images: list[list[Any]], **_: Any) -> dict[str, torch.Tensor]:
        """One prompt, its placeholders as many as the pictures have patches, four of them in one token."""
        read = dict(self.image_processor(images=images[0], return_tensors="pt"))
        prompt = text[0]
        for grid in read["image_grid_thw"]:
            prompt = prompt.replace("<|image_pad|>", "\0" * (int(grid.prod()) // 4), 1)
        ids = self.tokenizer(prompt.replace("\0", "<|image_pad|>"), return_tensors="pt")["input_ids"]
        return {**read, "input_ids": ids, "mm_token_type_ids": (ids == self.image_token_id).int()}


def generated_from_pictures(folder: str, parts: Sequence[str | bytes], most: int = 16) -> tuple[str, int]:
    """What the library's own ``generate`` writes about words and encoded pictures, and the length of its prompt."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype="float32").eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    shown = [Image.open(io.BytesIO(part)).convert("RGB") for part in parts if isinstance(part, bytes)]
    words = "".join("<image>" if isinstance(part, bytes) else part for part in parts)
    prompt = f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n"
    inputs = processor(text=[prompt], images=[shown], return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    written = model.generate(**inputs, max_new_tokens=most, do_sample=False)[0, length:]
    return processor.decode(written, skip_special_tokens=True).lstrip(), length


def _saved(folder: Path, model: Any, reader: Any) -> Path:
    transformers.utils.logging.disable_progress_bar()  # its monitor is a thread that stays
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    return folder
