"""Maps the rooms at the top of the repository to the ``duologue.`` prefix; everything static is in pyproject.toml.

A top-level package called ``codecs`` could never be imported (the standard library is loaded first), hence the prefix.

With ``DUOLOGUE_COMPILE=1`` mypyc compiles the modules that every chunk of sound passes through. The ``.py`` files are
installed beside what was made of them; Python prefers the latter if it was made for it.
"""

import os
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOMS = ("codecs", "engine", "sessions", "realtime", "web_demo")

COMPILED = (
    "codecs/wire_audio.py",
    "engine/sound_levels.py",
    "engine/stream.py",
    "engine/voice_activity.py",
    "realtime/websocket.py",
    "sessions/actor.py",
    "sessions/answering.py",
    "sessions/conversation.py",
    "sessions/core.py",
    "sessions/held_sound.py",
    "sessions/input_audio.py",
    "sessions/listening.py",
    "sessions/machine.py",
    "sessions/mcp/outputs.py",
    "sessions/metrics.py",
    "sessions/outbox.py",
    "sessions/output_items.py",
    "sessions/pacing.py",
    "sessions/playout.py",
    "sessions/response.py",
    "sessions/responses.py",
    "sessions/transcribing.py",
    "sessions/turns/semantic.py",
    "sessions/turns/silence.py",
)
"""A class is compiled with whatever inherits from it, or not at all. No structs that msgspec decodes into: it reads
their annotations, and mypyc replaces those that are unions."""

NEEDED_TO_COMPILE = ("mypy[mypyc]==2.4.*", "msgspec>=0.19", "numpy>=2.0")
"""The last two for their types: what mypyc does not know the type of stays as slow as it was."""

TYPES = """
[mypy]
cache_dir = {cache}
ignore_missing_imports = True
follow_imports = skip
[mypy-duologue.*,msgspec.*,numpy.*]
follow_imports = silent
"""
"""What else is installed where this is built must make no difference to what is built, nor take minutes to read."""


class Compile(build_ext):
    """Compiles when the wheel is built: setuptools runs this file some times before, and mypy may not be there yet."""

    def run(self) -> None:
        if self.editable_mode or self.inplace:
            sys.exit("DUOLOGUE_COMPILE=1 and an editable install do not go together: edits would have no effect.")
        self.distribution.ext_modules = compiled(Path(self.build_temp).absolute())
        self.reinitialize_command(self).ensure_finalized()
        super().run()


def compiled(work: Path) -> list[Extension]:
    """Type check ``COMPILED`` under the names that they are imported by, and write C in the folder ``work``."""
    from mypyc.build import mypycify

    root = Path(__file__).parent.absolute()
    work.mkdir(parents=True, exist_ok=True)
    config = work / "types.ini"
    config.write_text(TYPES.format(cache=work / "types"))
    with tempfile.TemporaryDirectory() as prefix, chdir(prefix):
        Path("duologue").mkdir()
        for room in ROOMS:
            Path("duologue", room).symlink_to(root / room)
        options = [f"--config-file={config}", "--namespace-packages", "--explicit-package-bases"]
        return mypycify(
            options + [f"duologue/{path}" for path in COMPILED],
            group_name="duologue",
            target_dir=str(work),
            multi_file=True,
            opt_level="2",
            debug_level="0",
        )


wanted = os.environ.get("DUOLOGUE_COMPILE", "")
if wanted not in ("", "0", "1"):
    sys.exit(f"DUOLOGUE_COMPILE is {wanted!r}: 1 makes a compiled build, 0 or nothing one of plain Python.")

setup(
    package_dir={f"duologue.{room}": room for room in ROOMS},
    packages=[f"duologue.{room}" for room in ROOMS]
    + [f"duologue.{room}.{sub}" for room in ROOMS for sub in find_packages(room)],
    cmdclass={"build_ext": Compile},
    # One without sources stands for all until they are made: since there are some, the wheel is one for a platform.
    ext_modules=[Extension("duologue", [])] if wanted == "1" else [],
    setup_requires=NEEDED_TO_COMPILE if wanted == "1" else [],
)
