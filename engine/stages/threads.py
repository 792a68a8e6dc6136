"""How the threads of the inference libraries wait for each other."""

from __future__ import annotations

import os


def let_waiting_threads_sleep() -> None:
    """Have OpenMP threads sleep at a barrier, not spin. Called before the libraries that use OpenMP are loaded.

    The stages of a pipeline share the cores. With the default policy a thread that waits for one which has lost its
    core burns the core that the other one needs: beside one busy process, generation on two cores fell from 100 to 5
    tokens a second; with sleeping threads it stayed above 30. A value set by the user stands.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
