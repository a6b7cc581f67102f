"""TLS towards backends."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def client_context(
    ca_file: Path | None, *, verify: bool, cert_file: Path | None = None, key_file: Path | None = None
) -> ssl.SSLContext:
    """Certificates are checked against `ca_file`, else against the system's; with `cert_file` the gateway shows its own
    (mTLS). Raises OSError (ssl.SSLError) on a bad file, ValueError on a key with a password.
    """
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file, password=no_password)
    context.set_alpn_protocols(["http/1.1"])
    return context


def no_password() -> str:
    """In place of OpenSSL's question at the terminal. Raises ValueError."""
    raise ValueError("the private key has a password")
