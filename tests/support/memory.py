"""Memory of this process."""

from __future__ import annotations

import resource
from pathlib import Path

_PAGE_BYTES = resource.getpagesize()


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES / 2**20
