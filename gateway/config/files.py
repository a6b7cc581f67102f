"""Files that the config names. What can be said of their content is said when the config is loaded.

Invariant: every file that validation meets is noted in the Surroundings, so that a change of it can be noticed.
"""

import json
import ssl
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema

from gateway.config.fields import Surroundings, fault
from prefix_index.encoding.template_files import beside

_MAX_JWKS_BYTES: Final = 1_000_000
_TEXT: Final = WithJsonSchema({"type": "string", "minLength": 1})


def _resolve(value: Any, surroundings: Surroundings | None) -> Path:
    """The path that the text means. Raises a fault where it is none, or a folder's."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise fault("must be the path of a file")
    path = Path(value) if surroundings is None else surroundings.base / value
    if path.is_dir():
        raise fault("is a folder, not a file")
    return path


def existing_file(value: Any, surroundings: Surroundings | None) -> Path:
    """The path of a file that can be read. Raises a fault."""
    path = _resolve(value, surroundings)
    if surroundings is not None:
        surroundings.files[path] = None
    try:
        with path.open("rb"):
            return path
    except FileNotFoundError:
        where = "" if surroundings is None or Path(value).is_absolute() else f", looked for in {surroundings.base}"
        raise fault(f"no such file{where}") from None
    except (OSError, ValueError) as error:
        raise fault(f"cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}") from None


def _existing_file(value: Any, info: ValidationInfo) -> Path:
    return existing_file(value, info.context)


def _tokenizer_file(value: Any, info: ValidationInfo) -> Path:
    """Notes what is read beside it, too."""
    path = existing_file(value, info.context)
    if info.context is not None:
        info.context.files.update(dict.fromkeys(beside(path)))
    return path


def _watched_file(value: Any, info: ValidationInfo) -> Path:
    """May be missing now, its folder may not. Not noted: whoever reads it watches it."""
    path = _resolve(value, info.context)
    if not path.parent.is_dir():
        raise fault("its folder does not exist")
    return path


def _certificates(path: Path) -> Path:
    _loaded(path)
    return path


def _authorities(path: Path) -> Path:
    if not _loaded(path).cert_store_stats()["x509_ca"]:
        raise fault("holds no certificate of a CA", "a server's or client's own certificate signs nobody")
    return path


def _loaded(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError):
        raise fault("holds no certificate in PEM form") from None
    return context


def matching_key(key_file: Path | None, info: ValidationInfo) -> Path | None:
    """For the validator of a `key_file` field that stands after `cert_file`."""
    cert_file = info.data.get("cert_file")
    if key_file is None or cert_file is None:
        return key_file
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, _no_password)
    except ssl.SSLError as error:
        if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise fault("is not the key of the certificate in cert_file") from None
        raise fault("holds no private key in PEM form that can be used") from None
    except OSError as error:
        raise fault(f"cannot be read: {error.strerror or type(error).__name__}") from None
    return key_file


def _no_password() -> str:
    # without this OpenSSL would ask on the terminal
    raise fault("is protected by a password", "write it without one, readable by the gateway alone")


def _jwks(path: Path) -> Path:
    with path.open("rb") as stream:
        raw = stream.read(_MAX_JWKS_BYTES + 1)
    if len(raw) > _MAX_JWKS_BYTES:
        raise fault("is too large for a JWK set")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise fault("is not JSON") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or not keys or not all(isinstance(key, dict) for key in keys):
        raise fault("is not a JWK set with at least one key", 'like {"keys": [{"kty": "RSA", ...}]}')
    if any("d" in key or "k" in key for key in keys):
        raise fault("holds private or symmetric keys", "only public keys belong here")
    return path


ExistingFile = Annotated[Path, BeforeValidator(_existing_file), _TEXT]
TokenizerFile = Annotated[Path, BeforeValidator(_tokenizer_file), _TEXT]
WatchedFile = Annotated[Path, BeforeValidator(_watched_file), _TEXT]
CertificateFile = Annotated[Path, BeforeValidator(_existing_file), AfterValidator(_certificates), _TEXT]
CaFile = Annotated[Path, BeforeValidator(_existing_file), AfterValidator(_authorities), _TEXT]
"""With at least one certificate that may sign others."""
JwksFile = Annotated[Path, BeforeValidator(_existing_file), AfterValidator(_jwks), _TEXT]
