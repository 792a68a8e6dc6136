"""How the threads of the inference libraries wait for each other."""

from __future__ import annotations

import os


def let_waiting_threads_sleep() -> None:
    """Have OpenMP threads sleep at a barrier, not spin. Called before the libraries that use OpenMP are loaded.

    The stages of a pipeline share the cores. With the default policy a thread that waits for one which has lost its
    core burns the core that the other one needs. Four conversations at once on two busy cores: replies starved for
    35 s and more in all when threads spun, for less than 1 s when they slept. The price is speed when nothing else
    runs (a token takes about twice as long). A value that the user has set stands.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
