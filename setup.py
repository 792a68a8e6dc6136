"""Maps the rooms at the top of the repository to the ``duologue.`` prefix; everything static is in pyproject.toml.

A top-level package called ``codecs`` could never be imported (the standard library is loaded first), hence the prefix.
"""

from setuptools import find_packages, setup

ROOMS = ("codecs", "engine", "sessions", "realtime", "web_demo")

setup(
    package_dir={f"duologue.{room}": room for room in ROOMS},
    packages=[f"duologue.{room}" for room in ROOMS]
    + [f"duologue.{room}.{sub}" for room in ROOMS for sub in find_packages(room)],
)
