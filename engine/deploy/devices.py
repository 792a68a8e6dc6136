"""Which accelerators a worker process may see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from duologue.engine.deploy.config import DeployError, StageDeploy

VARIABLES: Final = {"rocm": "HIP_VISIBLE_DEVICES"}
"""By platform; elsewhere ``CUDA_VISIBLE_DEVICES``."""


def visible_devices(
    placed: StageDeploy, index: int, platform: str, where: str, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment by which replica ``index`` of a stage sees its share of ``devices``, and nothing else.

    ``devices`` count within what this process itself may see: where that is ``0,2,4``, device 1 is the machine's 2. A
    variable that the stage's own ``env`` sets stands. Raises :class:`DeployError` for a device that is not there.
    """
    variable = VARIABLES.get(platform, "CUDA_VISIBLE_DEVICES")
    if not placed.devices or variable in placed.env:
        return {}
    share = len(placed.devices) // (placed.replicas or 1)
    mine = placed.devices[index * share : (index + 1) * share]
    visible = (os.environ if environment is None else environment).get(variable)
    if visible is None:
        return {variable: ",".join(map(str, mine))}
    known = [name.strip() for name in visible.split(",") if name.strip()]
    for device in mine:
        if not 0 <= device < len(known):
            raise DeployError(
                f"{where}: devices: there is no device {device}; {variable}={visible} makes {len(known)} visible"
            )
    return {variable: ",".join(known[device] for device in mine)}
