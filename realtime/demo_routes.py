"""The browser demo at ``/``: the files of ``web_demo``, read once and served from memory.

The page needs no key (a browser cannot send one with a link that is opened); what it then does needs one like every
other client.
"""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PREFIX = "/demo/"
"""Below it lie the page's own files; only the page itself is at ``/``, and the icon where browsers look for one."""

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "Cache-Control": "no-cache",  # keep it, but ask each time whether it is still the same: names carry no version
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "camera=(self), microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Asset(msgspec.Struct, frozen=True):
    """One file of the page."""

    body: bytes
    content_type: str
    etag: str


def demo_routes() -> list[Route]:
    """A route per file of the page."""
    assets = {PREFIX + name: asset for name, asset in _read(files("duologue.web_demo"), "").items()}
    assets["/"] = assets.pop(f"{PREFIX}index.html")
    assets["/favicon.ico"] = assets[f"{PREFIX}icon.svg"]
    return [Route(path, partial(_serve, asset), methods=["GET"]) for path, asset in sorted(assets.items())]


def _read(folder: Traversable, prefix: str) -> dict[str, Asset]:
    found: dict[str, Asset] = {}
    for entry in folder.iterdir():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            found |= _read(entry, f"{prefix}{entry.name}/")
        elif kind is not None:
            body = entry.read_bytes()
            found[prefix + entry.name] = Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found


async def _serve(asset: Asset, request: Request) -> Response:
    headers = {**HEADERS, "ETag": asset.etag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if asset.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.content_type, headers=headers)
