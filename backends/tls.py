"""TLS towards backends."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def client_context(ca_file: Path | None, *, verify: bool) -> ssl.SSLContext:
    """Certificates are checked against `ca_file`, else against the system's. Raises OSError (ssl.SSLError) on a bad
    file.
    """
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
