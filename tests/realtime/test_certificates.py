"""https with a certificate of this machine's own making."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path

import pytest
import websockets
from served import server

from duologue.engine.models import cache_root
from duologue.realtime import certificates
from duologue.realtime.certificates import CertificateError, fingerprint, own_names, self_signed


@pytest.mark.parametrize("maker", ["cryptography", "openssl"])
def test_a_certificate_holds_for_its_names_and_is_kept(
    maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if maker == "openssl":
        monkeypatch.setitem(sys.modules, "cryptography", None)
    path = self_signed(tmp_path, ["localhost", "127.0.0.1", "::1"])
    assert path.stat().st_mode & 0o077 == 0
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    shown = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    names = {(kind, name.lstrip("0:") or name) for kind, name in shown["subjectAltName"]}
    assert {("DNS", "localhost"), ("IP Address", "127.0.0.1"), ("IP Address", "1")} == names
    assert self_signed(tmp_path, ["127.0.0.1", "::1", "localhost"]) == path
    assert self_signed(tmp_path, ["localhost"]) != path
    assert len(fingerprint(path).split(":")) == 32


def test_without_anything_to_make_one_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setattr(certificates.shutil, "which", lambda name: None)
    with pytest.raises(CertificateError, match="pip install cryptography"):
        self_signed(tmp_path)


def test_the_machines_own_names_hold_localhost_and_the_loopback_address() -> None:
    assert {"localhost", "127.0.0.1"} <= set(own_names())


@pytest.mark.models
async def test_a_session_over_tls_with_the_certificate_checked(tmp_path: Path) -> None:
    with server(tmp_path, "--ssl-self-signed") as running:
        assert running.url.startswith("https://127.0.0.1:")
        path = self_signed(cache_root() / "certificates")  # there is one for these names now
        trusting = ssl.create_default_context(cafile=path)
        address = running.url.replace("https", "wss", 1) + "/v1/realtime"
        async with asyncio.timeout(30), websockets.connect(address, ssl=trusting, compression=None) as socket:
            assert '"session.created"' in str(await socket.recv())
            for _ in range(3):
                await socket.send('{"type": "session.update", "session": {"type": "realtime", "instructions": "x"}}')
                assert '"session.updated"' in str(await socket.recv())
        assert fingerprint(path) in running.errors.read_text()
