"""Packages of npm, by their lock file: installed once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from missing import missing

OLDEST_NODE = 18
INSTALL_S = 300.0


def node_modules(folder: Path) -> Path:
    """The installed packages of ``folder``'s ``package-lock.json``."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        missing("Node and npm are not installed: @openai/agents cannot be tried.")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        missing(f"Node {version} is too old for @openai/agents: {OLDEST_NODE} or later is needed.")
    lock = (folder / "package-lock.json").read_bytes()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duologue-tests"
    packages = caches / f"agents-js-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not packages.exists():
        _install(folder, caches, packages)
    return packages / "node_modules"


def _install(folder: Path, caches: Path, packages: Path) -> None:
    caches.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=caches) as holder:
        fresh = Path(holder) / "packages"
        fresh.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(folder / name, fresh)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode:
            missing(f"npm could not install @openai/agents: {done.stderr[-1000:]}")
        try:
            fresh.rename(packages)
        except OSError:  # somebody else was faster
            shutil.rmtree(fresh)
