"""The deploy file: where the stages of a pipeline run, how large they are, and what the edge is called."""

from duologue.engine.deploy.config import (
    Aliases,
    ConnectorDeploy,
    DeployConfig,
    DeployError,
    DuplexSession,
    StageDeploy,
)
from duologue.engine.deploy.load import DEFAULT_FILE, current_platform, load_deploy
from duologue.engine.deploy.overrides import Overrides, parse_stage_overrides

__all__ = [
    "DEFAULT_FILE",
    "Aliases",
    "ConnectorDeploy",
    "DeployConfig",
    "DeployError",
    "DuplexSession",
    "Overrides",
    "StageDeploy",
    "current_platform",
    "load_deploy",
    "parse_stage_overrides",
]
