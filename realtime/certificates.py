"""A certificate made on the spot: browsers give the microphone only to https pages, except on the machine itself.

Nobody vouches for such a certificate, so every browser warns once. It is kept, so that the exception that somebody
made for it is still good after a restart.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

VALID_DAYS = 365
RENEWED_AFTER_S = 300 * 86_400


class CertificateError(Exception):
    """There is no certificate; the message is one line that says what to do."""


def self_signed(folder: Path, names: Sequence[str] | None = None) -> Path:
    """A PEM file with a key and a certificate for ``names`` (host names and addresses; by default this machine's).

    An earlier one for the same names is used again. Raises :class:`CertificateError`.
    """
    names = sorted(set(names if names is not None else own_names()))
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    path = folder / f"self-signed-{digest[:16]}.pem"
    if path.exists() and time.time() - path.stat().st_mtime < RENEWED_AFTER_S:
        return path
    pem = _by_cryptography(names) or _by_openssl(names)
    folder.mkdir(parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=folder)  # only its owner may read it
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
    os.replace(fresh, path)
    return path


def fingerprint(path: Path) -> str:
    """SHA-256 of the certificate in a PEM file, as browsers show it."""
    text = path.read_text()
    der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE-----") :])
    return hashlib.sha256(der).digest().hex(":").upper()


def own_names() -> list[str]:
    """The names and addresses by which this machine can be reached."""
    host = socket.gethostname()
    found = ["localhost", host, f"{host.partition('.')[0]}.local"]
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                found.append(address.address.partition("%")[0])
    return found


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _by_cryptography(names: Sequence[str]) -> bytes | None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        return None
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "duologue")])
    now = datetime.now(UTC)
    alternatives = [
        x509.IPAddress(ipaddress.ip_address(name)) if _is_address(name) else x509.DNSName(name) for name in names
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _by_openssl(names: Sequence[str]) -> bytes:
    program = shutil.which("openssl")
    if program is None:
        raise CertificateError(
            "--ssl-self-signed needs the package cryptography (pip install cryptography) or the program openssl."
        )
    alternatives = ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in names)
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder) / "key.pem", Path(folder) / "certificate.pem"
        command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-days", str(VALID_DAYS), "-subj", "/CN=duologue", "-addext", f"subjectAltName={alternatives}"]
        command += ["-addext", "extendedKeyUsage=serverAuth", "-keyout", str(key), "-out", str(certificate)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CertificateError(f"openssl could not make a certificate: {done.stderr.strip()[-300:]}")
        return key.read_bytes() + certificate.read_bytes()
