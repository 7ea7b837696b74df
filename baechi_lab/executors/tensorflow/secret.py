"""The secret that machines of one cluster share: a file with a private key and its certificate, for `tunnel`."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from ...errors import InvalidInput, MissingPackage, in_short
from ...graph.formats.reading import name_of
from .tunnel import context

YEARS = 10  # for which the certificate is valid


def make_secret(path: str | os.PathLike[str]) -> Path:
    """Writes a new secret that only its owner can read. Copy it to the machines of a cluster over a trusted channel.

    The file has an Ed25519 key and a self-signed certificate (RFC 5280, RFC 8410), in PEM. Anyone with the file can use the
    workers that were started with it, and so run code as the user who started them.

    Returns:
        the path.

    Raises:
        InvalidInput: the path exists already.
        MissingPackage: `cryptography` is not installed (extra `cluster`).

    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> oct(make_secret(os.path.join(folder, "cluster.pem")).stat().st_mode & 0o777)
    '0o600'
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingPackage.of("cryptography", "cluster", "make_secret") from error
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "baechi-lab workers")])
    issued_at = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issued_at - datetime.timedelta(days=1))
        .not_valid_after(issued_at + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    path = name_of(path)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(text)
    except FileExistsError:
        raise InvalidInput(f"{path} exists; a secret is never written over another file") from None
    except (OSError, ValueError) as error:  # ValueError: a character that no name of a file has
        raise InvalidInput(f"{path!a:.80} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return Path(path)


def check_secret(path: str | os.PathLike[str]) -> None:
    """Raises `InvalidInput` if the file is no secret, or if other users can read it."""
    path = name_of(path, "secret")
    try:
        context(path, server=True)
    except OSError as error:  # what TLS says of a file is one as well
        raise InvalidInput(
            f"secret is {in_short(path, 200)}, which cannot be read: {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise InvalidInput(f"secret: {error}") from error
