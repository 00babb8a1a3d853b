"""Makes small Llama models with random weights, for vLLM (a model folder) and for llama.cpp (a GGUF file).

Run by `scripts/engines.sh models` in an environment that has `tokenizers`, `numpy` and `gguf`; nothing is downloaded.
The weights are noise, so the answers are too: what the models are good for is real scheduling, real KV caches and real
HTTP. vLLM makes its own noise (`--load-format dummy`), so only llama.cpp's file carries weights.

The tokenizer is a byte-level BPE trained on the source of Python's standard library: about three bytes a token.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIALS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
CONTEXT_TOKENS = 8192
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    name: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 4096

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads


SHAPES = (
    # 0.8 M parameters: starts fastest, decodes faster than its server can send.
    Shape("tiny", hidden=128, feed_forward=256, layers=2, heads=4, kv_heads=2),
    # 27 M parameters, 8 KiB of KV cache a token: 10 to 30 ms a token, real queues and preemptions within seconds.
    Shape("small", hidden=512, feed_forward=1536, layers=8, heads=8, kv_heads=4),
)


def make_tokenizer(shape: Shape, folder: Path) -> dict[str, int]:
    """Trains and writes the tokenizer; returns the ids of its special tokens."""
    kit: Any = importlib.import_module("tokenizers")
    tokenizer = kit.Tokenizer(kit.models.BPE())
    tokenizer.pre_tokenizer = kit.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = kit.decoders.ByteLevel()
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:150]
    trainer = kit.trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=kit.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(source) for source in sources], trainer)
    ids: dict[str, int] = {special: tokenizer.token_to_id(special) for special in SPECIALS}
    tokenizer.post_processor = kit.processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", ids["<|bos|>"])]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return ids


def write_json(path: Path, content: object) -> None:
    """Writes one of the model's JSON files."""
    path.write_text(json.dumps(content, indent=1) + "\n")


def make_folder(shape: Shape, folder: Path) -> None:
    """Writes what vLLM wants to see of a model, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = make_tokenizer(shape, folder)
    named = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
    write_json(
        folder / "tokenizer_config.json",
        named
        | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT_TOKENS,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    write_json(
        folder / "special_tokens_map.json",
        named | {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
    )
    ends = {
        "bos_token_id": ids["<|bos|>"],
        "eos_token_id": [ids["<|eos|>"], ids["<|im_end|>"]],
        "pad_token_id": ids["<|pad|>"],
    }
    write_json(folder / "generation_config.json", ends)
    write_json(
        folder / "config.json",
        ends
        | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.feed_forward,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_width,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": CONTEXT_TOKENS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "bfloat16",
            "eos_token_id": ids["<|eos|>"],
        },
    )


def weight_shapes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of llama.cpp's tensors; those with one dimension are norms."""
    hidden, kv_width = shape.hidden, shape.kv_heads * shape.head_width
    yield "token_embd", (shape.vocabulary, hidden)
    yield "output_norm", (hidden,)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm", (hidden,)
        yield f"{block}.attn_q", (hidden, hidden)
        yield f"{block}.attn_k", (kv_width, hidden)
        yield f"{block}.attn_v", (kv_width, hidden)
        yield f"{block}.attn_output", (hidden, hidden)
        yield f"{block}.ffn_norm", (hidden,)
        yield f"{block}.ffn_gate", (shape.feed_forward, hidden)
        yield f"{block}.ffn_up", (shape.feed_forward, hidden)
        yield f"{block}.ffn_down", (hidden, shape.feed_forward)


def make_gguf(shape: Shape, folder: Path, target: Path) -> None:
    """Writes the same model as a GGUF file with random weights."""
    gguf: Any = importlib.import_module("gguf")
    np: Any = importlib.import_module("numpy")
    tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL

    writer = gguf.GGUFWriter(str(target), "llama")
    writer.add_name(f"forebay-{shape.name}")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([control if word in SPECIALS else normal for word in words])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocabulary["<|bos|>"])
    writer.add_eos_token_id(vocabulary["<|eos|>"])
    writer.add_pad_token_id(vocabulary["<|pad|>"])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(TEMPLATE)

    noise = np.random.default_rng(0)
    for name, dimensions in weight_shapes(shape):
        if len(dimensions) == 1:
            tensor = np.ones(dimensions, dtype=np.float32)
        else:
            tensor = (noise.standard_normal(dimensions, dtype=np.float32) * 0.05).astype(np.float16)
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    """Makes what is missing under the folder given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the models go, one folder and one .gguf file each")
    root: Path = parser.parse_args().folder
    for shape in SHAPES:
        folder, file = root / shape.name, root / f"{shape.name}.gguf"
        if not (folder / "config.json").exists():
            make_folder(shape, folder)
        if not file.exists():
            unfinished = file.with_suffix(".part")
            make_gguf(shape, folder, unfinished)
            unfinished.rename(file)
        print(f"{folder} and {file}: {file.stat().st_size // 1024} KiB", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
