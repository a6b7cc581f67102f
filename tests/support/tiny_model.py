"""A tiny Llama made on the spot, for real engines: nothing is downloaded.

Two layers, a byte-level vocabulary trained on Python's own help texts, a ChatML template with tools. Attention and MLP
add nothing to the residual stream and the output head is a table, so the answer is one long cycle through the words of
the vocabulary: it is the same on every engine, never ends by itself, and reads back as the tokens that were written.
What an engine does with its caches is all there.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import pydoc_data.topics
import random
import re
import shutil
import tempfile
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support import weight_files
from tests.support.weight_files import Tensor, write_gguf, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator

CHATML: Final = """\
{%- if tools %}<|im_start|>system
You may call:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PAD, START, END = SPECIALS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# the split that llama.cpp calls qwen2
_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_VOCABULARY: Final = 2048
_HIDDEN, _HEADS, _HEAD, _MLP, _LAYERS, _CONTEXT = 64, 1, 64, 128, 2, 32768
_EPSILON, _ROPE_BASE = 1e-6, 10_000.0
_CACHE: Final = Path(__file__).parents[2] / "build" / "tiny-model"
_GGUF_NAMES: Final = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    folder: Path
    """As Hugging Face lays a model out; what vLLM and SGLang load."""

    @property
    def gguf(self) -> Path:
        return self.folder / "model.gguf"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def chat_template(self) -> Path:
        return self.folder / "chat_template.jinja"


def tiny_model(cache: Path = _CACHE) -> TinyModel:
    """Made once per version of this code, its libraries and Python; processes that make it at once do not disturb one
    another."""
    folder = cache / _version()
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(dir=cache))
        _write(begun)
        try:
            os.rename(begun, folder)
        except OSError:  # another process was first
            shutil.rmtree(begun)
    return TinyModel(folder)


def _version() -> str:
    sources = [Path(file).read_bytes() for file in (__file__, weight_files.__file__)]
    libraries = f"{tokenizers.__version__} {platform.python_version()}".encode()
    return hashlib.sha256(b"\0".join([*sources, libraries])).hexdigest()[:16]


def _write(folder: Path) -> None:
    tokenizer = _train()
    tensors = list(_weights(tokenizer.get_vocab()))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHATML)
    write_safetensors(folder / "model.safetensors", tensors)
    write_gguf(folder / "model.gguf", _gguf_facts(tokenizer), [_for_gguf(tensor) for tensor in tensors])
    for name, content in _hugging_face(tokenizer).items():
        (folder / name).write_text(json.dumps(content, indent=1))


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY - len(SPECIALS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    topics = pydoc_data.topics.topics
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def _weights(vocabulary: dict[str, int]) -> Iterator[Tensor]:
    """By their Hugging Face names."""
    chance = random.Random(0)
    embedding = _noise(chance, _VOCABULARY * _HIDDEN, 1.0)
    yield Tensor("model.embed_tokens.weight", (_VOCABULARY, _HIDDEN), embedding)
    wide = _HEADS * _HEAD
    shapes = {
        "self_attn.q_proj": (wide, _HIDDEN),
        "self_attn.k_proj": (wide, _HIDDEN),
        "self_attn.v_proj": (wide, _HIDDEN),
        "mlp.gate_proj": (_MLP, _HIDDEN),
        "mlp.up_proj": (_MLP, _HIDDEN),
    }
    silent = {"self_attn.o_proj": (_HIDDEN, wide), "mlp.down_proj": (_HIDDEN, _MLP)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns) in shapes.items():
            yield Tensor(f"{prefix}{name}.weight", (rows, columns), _noise(chance, rows * columns, _HIDDEN**-0.5))
        for name, (rows, columns) in silent.items():
            yield Tensor(f"{prefix}{name}.weight", (rows, columns), array("f", bytes(4 * rows * columns)))
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield Tensor(f"{prefix}{name}.weight", (_HIDDEN,), array("f", [1.0] * _HIDDEN))
    yield Tensor("model.norm.weight", (_HIDDEN,), array("f", [1.0] * _HIDDEN))
    yield Tensor("lm_head.weight", (_VOCABULARY, _HIDDEN), _cycle(chance, vocabulary, embedding))


def _noise(chance: random.Random, count: int, scale: float) -> array[float]:
    """Even over a range whose standard deviation is `scale`."""
    step = scale / 73.9
    table = [(byte - 127.5) * step for byte in range(256)]
    return array("f", [table[byte] for byte in chance.randbytes(count)])


def _cycle(chance: random.Random, vocabulary: dict[str, int], embedding: array[float]) -> array[float]:
    """The output head: each word's successor scores by the word's own embedding, all that is no word scores 0."""
    words = sorted(token for text, token in vocabulary.items() if re.fullmatch(r"Ġ[a-z]{2,12}", text))
    chance.shuffle(words)
    head = array("f", bytes(4 * _VOCABULARY * _HIDDEN))
    for word, successor in zip(words, words[1:] + words[:1], strict=True):
        head[successor * _HIDDEN : (successor + 1) * _HIDDEN] = embedding[word * _HIDDEN : (word + 1) * _HIDDEN]
    return head


def _for_gguf(tensor: Tensor) -> Tensor:
    """Under ggml's name. The rows of q and k would have to change places for its rotary layout; as nothing that
    attention finds reaches the output, they may stay."""
    path, leaf = tensor.name.rsplit(".", 1)
    if path.startswith("model.layers."):
        _, _, layer, part = path.split(".", 3)
        return Tensor(f"blk.{layer}.{_GGUF_NAMES[part]}.{leaf}", tensor.shape, tensor.values)
    return Tensor(f"{_GGUF_NAMES[path]}.{leaf}", tensor.shape, tensor.values)


def _gguf_facts(tokenizer: Tokenizer) -> dict[str, weight_files.Value]:
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    normal, control = 1, 3
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": 0,
        "llama.context_length": _CONTEXT,
        "llama.embedding_length": _HIDDEN,
        "llama.block_count": _LAYERS,
        "llama.feed_forward_length": _MLP,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _HEADS,
        "llama.attention.layer_norm_rms_epsilon": _EPSILON,
        "llama.rope.dimension_count": _HEAD,
        "llama.rope.freq_base": _ROPE_BASE,
        "llama.vocab_size": _VOCABULARY,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [control if token in SPECIALS else normal for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": vocabulary[PAD],
        "tokenizer.ggml.eos_token_id": vocabulary[END],
        "tokenizer.ggml.padding_token_id": vocabulary[PAD],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def _hugging_face(tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    pad, end = tokenizer.token_to_id(PAD), tokenizer.token_to_id(END)
    ids = {"bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": _HIDDEN,
            "intermediate_size": _MLP,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _HEADS,
            "head_dim": _HEAD,
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": _CONTEXT,
            "rms_norm_eps": _EPSILON,
            "rope_theta": _ROPE_BASE,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            **ids,
        },
        "generation_config.json": {**ids, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": _CONTEXT,
            "chat_template": CHATML,
            "bos_token": None,
            "eos_token": END,
            "pad_token": PAD,
            "unk_token": None,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
        },
    }
