"""The deploy file: where the stages of a pipeline run, how large they are, and what the edge is called."""

from duologue.engine.deploy.config import (
    Aliases,
    Autoscale,
    ConnectorDeploy,
    DeployConfig,
    DeployError,
    DuplexSession,
    RayDeploy,
    Resources,
    StageDeploy,
)
from duologue.engine.deploy.load import DEFAULT_FILE, current_platform, load_deploy
from duologue.engine.deploy.overrides import Overrides, parse_stage_overrides

__all__ = [
    "DEFAULT_FILE",
    "Aliases",
    "Autoscale",
    "ConnectorDeploy",
    "DeployConfig",
    "DeployError",
    "DuplexSession",
    "Overrides",
    "RayDeploy",
    "Resources",
    "StageDeploy",
    "current_platform",
    "load_deploy",
    "parse_stage_overrides",
]
