"""How the threads of the inference libraries wait for each other."""

from __future__ import annotations

import os

SPIN_COUNT = "1000"
"""Turns of a waiting thread before it sleeps: a few microseconds, longer than a step of a small model is uneven."""


def keep_blas_to_one_thread() -> None:
    """Have numpy compute on the thread that asks. Called before numpy is loaded, which reads this once.

    What the stages multiply is too small to share. The threads that OpenBLAS keeps for more turn in a loop while they
    wait: 3 % of a server's processor time with eight callers on two cores. A value that the user has set stands.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def let_waiting_threads_sleep() -> None:
    """Have OpenMP threads sleep at a barrier after a moment. Called before the libraries that use OpenMP are loaded.

    The stages of a pipeline share the cores. With the default policy a thread that waits for one which has lost its
    core burns the core that the other one needs; a thread that sleeps at once is woken for every step of the model.
    Two threads of the language model on two cores, tokens a second alone, and with one and two other busy processes:
    129, 37, 20 by default; 48, 59, 27 asleep at once; 120, 36, 55 with a moment of spinning, and 84, 82, 55 with one
    thread for tokens and two for prompts. In conversation two threads for both are better all the same: a token of a
    lone answer takes 13 ms instead of 19, and with eight callers fewer answers run dry. A value that the user has set
    stands.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
