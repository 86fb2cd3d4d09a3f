"""Folders in Hugging Face's format, with tokenizers of the kinds that models have."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

_SPLIT = r"\p{N}| ?\p{L}+|[^\p{L}\p{N}]+"
CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
}


def byte_level() -> Tokenizer:
    """As of Qwen: bytes by characters, a division by a regular expression, normalization form C."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("Ã", "©"), ("Ġ", "Ġ")]
    texts = [*alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("né", special=False)])
    tokenizer.add_special_tokens(["<|end|>", "<|start|>"])
    return tokenizer


def sentence_pieces() -> Tokenizer:
    """As of Llama 2: spaces by characters, and tokens for bytes; each text gets a first space, and
    each prompt the token <s>."""
    merges = [("▁", "t"), ("▁t", "he"), ("h", "e"), ("▁", "▁")]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [*"▁the,.aA1é", *dict.fromkeys(left + right for left, right in merges)]
    tokenizer = Tokenizer(
        models.BPE(
            {text: i for i, text in enumerate(texts)},
            [merges[2], *merges[:2], merges[3]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """As of Gemma: spaces by characters, without a first one, and tokens for bytes."""
    texts = ["<pad>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁the\n", "▁▁", "th"]
    model = models.BPE(
        {text: i for i, text in enumerate(texts)}, [("▁", "▁"), ("t", "h")], byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace("▁", "never")]
    )
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    return tokenizer


LOSSLESS: Final[Mapping[str, Callable[[], Tokenizer]]] = {
    "byte_level": byte_level,
    "sentence_pieces": sentence_pieces,
    "metaspace": metaspace,
}


def write_folder(folder: Path, tokenizer: Tokenizer | bytes | None, **files: Any) -> Path:
    """Write a tokenizer, `CONFIG` with the values of `config`, and other files by the names of
    their JSON. Those that are None are left out."""
    folder.mkdir(exist_ok=True)
    if isinstance(tokenizer, Tokenizer):
        tokenizer = tokenizer.to_str().encode()
    if tokenizer is not None:
        (folder / "tokenizer.json").write_bytes(tokenizer)
    files["config"] = {**CONFIG, **files.get("config", {})}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
