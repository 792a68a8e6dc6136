"""The shapes of the deploy file. An absent value means "no override", never zero or false."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from duologue.engine.replica_policy import PolicyName


class DeployError(ValueError):
    """The deploy file breaks a rule; the message is one line that names file, path and rule."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the structs of this module."""


Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class ConnectorDeploy(Shape, frozen=True):
    """How payloads cross an edge."""

    name: str
    extra: dict[str, Any] = {}


class DuplexSession(Shape, frozen=True):
    """Bounds of one session's buffers and of how many there are."""

    max_sessions: Count = 64
    input_buffer_s: Seconds = 30.0
    """Sound of a call that may wait while its session is busy; the newest is kept. A WebSocket is not read instead."""
    output_buffer_bytes: Count = 2_097_152
    output_buffer_events: Count = 512
    resume_window_s: Seconds = 30.0
    speculate: bool = True
    """Whether answers are prepared while a pause of the user may be the end of the turn."""
    turn_model: str | None = "smart-turn-v3.2"
    """Model that judges under ``semantic_vad`` whether a turn sounds finished: a logical name or a path; null: none.
    Then silence alone decides, as it does when the model cannot be had."""


class IceServer(Shape, frozen=True):
    """A STUN or TURN server (``stun:HOST:PORT``, ``turn:HOST:PORT?transport=udp|tcp``, ``turns:...``)."""

    urls: Annotated[list[Annotated[str, msgspec.Meta(pattern="^(stun|turns?):.+")]], msgspec.Meta(min_length=1)]
    username: str | None = None
    credential: str | None = None
    secret: str | None = None
    """What the TURN server makes accounts of that end by themselves (coturn: ``use-auth-secret``)."""
    for_clients: bool | None = None
    """Whether clients are told of it. None: unless they would learn a password that does not end."""

    def __post_init__(self) -> None:
        if self.secret is not None and (self.username is not None or self.credential is not None):
            raise ValueError("'secret' takes the place of 'username' and 'credential'")

    @property
    def shared(self) -> bool:
        """Whether clients are told of it."""
        return self.credential is None if self.for_clients is None else self.for_clients

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Fields for printing, without password and secret. ``repr`` uses it as well."""
        hidden = (("credential", self.credential), ("secret", self.secret))
        return [("urls", self.urls), ("username", self.username), *((name, value and "...") for name, value in hidden)]

    def __repr__(self) -> str:
        return f"IceServer({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


UdpPort = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class WebRtcDeploy(Shape, frozen=True):
    """How the media of WebRTC calls is reached."""

    addresses: list[str] = []
    """Local addresses that media sockets are bound to; empty: every one that is not loopback."""
    advertise: str | None = None
    """Address under which clients reach this host, where a NAT (a container's, a cloud's) maps it port by port."""
    udp_ports: tuple[UdpPort, UdpPort] | None = None
    """First and last port for media; a call takes one for each address. None: any that is free."""
    ice_servers: list[IceServer] = []
    """The first STUN and the first TURN server are used."""
    turn_account_s: Annotated[float, msgspec.Meta(ge=60)] = 86_400.0
    """How long an account is good that is made of a TURN server's secret; a call may last as long."""
    relay_only: bool = False
    """Whether media goes through the TURN server only."""
    connect_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """After so long without a connection a call is given up."""

    media_workers: Annotated[int, msgspec.Meta(ge=0, le=64)] | Literal["auto"] = "auto"
    """Processes that the media of calls runs in; 0: the gateway's own. ``auto``: by the processor cores."""

    video_fps: Annotated[float, msgspec.Meta(gt=0, le=30)] = 1.0
    """Frames a second that are taken of a video track, at most."""
    video_max_side: Annotated[int, msgspec.Meta(ge=64)] = 768
    """Longest side of a frame in pixels; larger ones are scaled down."""
    video_similarity: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.985
    """A frame that is at least so similar to the last one taken is left out; 1: only if it is the same."""

    def __post_init__(self) -> None:
        for address in (*self.addresses, *filter(None, [self.advertise])):
            ipaddress.ip_address(address)  # says itself what is wrong
        if self.udp_ports is not None and self.udp_ports[0] > self.udp_ports[1]:
            raise ValueError(f"the first UDP port ({self.udp_ports[0]}) is above the last ({self.udp_ports[1]})")
        if self.relay_only and not any(url.startswith("turn") for server in self.ice_servers for url in server.urls):
            raise ValueError("'relay_only' needs a TURN server among 'ice_servers'")


class TelephonyDeploy(Shape, frozen=True):
    """Calls over the media streams of a telephony provider."""

    callback_url: Annotated[str, msgspec.Meta(pattern="^https?://.+")] | None = None
    """Who is told of calls that begin and end, and asked to pass one on (JSON by POST). None: nobody."""


class Aliases(Shape, frozen=True):
    """Names that clients may use besides the served ones; the target ``default`` is the first served name."""

    models: dict[str, str] = {}
    voices: dict[str, str] = {}
    transcription_models: dict[str, str] = {}


class RayDeploy(Shape, frozen=True):
    """The Ray cluster that stages with ``executor: ray`` run on."""

    address: str | None = None
    """As for ``ray.init``: ``HOST:PORT``, ``auto``; None: ``RAY_ADDRESS``, a cluster found on this host, else one is
    started here for as long as the gateway runs."""
    namespace: str = "duologue"
    runtime_env: dict[str, Any] = {}
    """As for ``ray.init``: what the workers need on their nodes."""
    placement_timeout_s: Seconds = 60.0
    """Longest wait for a node with room for a replica."""
    silent_after_s: Annotated[float, msgspec.Meta(ge=0.1)] = 1.0
    """A replica at work that is silent for so long fails its requests and gets no new ones until it is heard again."""
    dead_after_s: Annotated[float, msgspec.Meta(ge=0.1)] = 10.0
    """After so long it is killed and another one is started."""


class Resources(Shape, frozen=True):
    """What one replica of a stage with ``executor: ray`` takes up on its node."""

    num_cpus: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    num_gpus: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """None: the stage's ``devices``, divided by its replicas."""
    custom: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    """Resources that nodes were started with (``ray start --resources``), by name."""


class Autoscale(Shape, frozen=True):
    """Bounds of the number of replicas, and what moves it."""

    max_replicas: Count
    min_replicas: Count = 1
    target_queue_depth: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    """Requests open for each replica that it is kept to."""
    cooldown_s: Seconds = 30.0
    """A replica is removed once it was not needed for so long."""


class StageDeploy(Shape, frozen=True):
    """Placement and size of one stage."""

    stage_id: int
    executor: str | None = None
    replicas: Count | None = None
    replica_policy: PolicyName | None = None
    """How requests are spread over the replicas; None: to the one with the fewest."""
    devices: list[int] | None = None
    max_num_seqs: Count | None = None
    tensor_parallel_size: Count | None = None
    data_parallel_size: Count | None = None
    pipeline_parallel_size: Count | None = None
    env: dict[str, str | int | float] = {}
    """Environment of the launch, turned to strings. Keys may be logged, values never."""
    engine_args: dict[str, Any] = {}
    """Keyword arguments of the stage's class; one that it does not know stops the start."""
    sampling: dict[str, Any] = {}
    output_connectors: dict[str, str] = {}
    resources: Resources | None = None
    autoscale: Autoscale | None = None

    @property
    def most_replicas(self) -> int:
        """How many replicas there may be at a time."""
        return self.autoscale.max_replicas if self.autoscale else self.replicas or 1

    @property
    def first_replicas(self) -> int:
        """How many replicas there are at the start."""
        return self.autoscale.min_replicas if self.autoscale else self.replicas or 1

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Fields for printing, with the values of ``env`` left out. ``repr`` uses it as well."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return list((fields | {"env": dict.fromkeys(self.env, "...")}).items())

    def __repr__(self) -> str:
        return f"StageDeploy({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class DeployConfig(Shape, frozen=True):
    """An effective deploy file: overlays and the platform's section are already merged in."""

    pipeline: str
    async_chunk: bool = True
    session_mode: Literal["turn", "duplex"] = "turn"
    duplex_session: DuplexSession = DuplexSession()
    webrtc: WebRtcDeploy = WebRtcDeploy()
    telephony: TelephonyDeploy = TelephonyDeploy()
    connectors: dict[str, ConnectorDeploy] = {}
    ray: RayDeploy = RayDeploy()
    stage_init_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    """Longest time for a stage in a worker process to load, and again to warm up."""
    stages: list[StageDeploy] = []
    instructions: str = ""
    """System prompt of a session that sets none of its own."""
    translation_instructions: str = ""
    """System prompt of a translation session; ``{language}`` stands for the target's name. Empty: the built-in one."""
    aliases: Aliases = Aliases()
    limits: dict[str, float] = {}
    """What a session may do; the names are those of the session core's limits, which checks them."""
    prompts: dict[str, dict[str, Any]] = {}
    """Stored prompts by the id under which clients name them; their shape is the session core's, which checks it."""
    mcp: dict[str, Any] = {}
    """The MCP servers that sessions may have called; its shape is the session core's, which checks it."""
    file: Path | None = None
    """Where it was read from, for messages; not a key of the file."""
    source: str = ""
    """The file, and the options that were laid over it, for messages; not a key of the file."""
    checkpoint: str | None = None
    """Path or hub id for the stages that name no model of their own; not a key of the file either."""
    set_by: dict[str, str] = {}
    """Path of a value -> the file or option that set it; not a key of the file."""

    def stage(self, stage_id: int) -> StageDeploy:
        """The settings of that stage; an empty entry when the file has none."""
        for stage in self.stages:
            if stage.stage_id == stage_id:
                return stage
        return StageDeploy(stage_id=stage_id)


NOT_IN_FILES: Final = ("file", "source", "checkpoint", "set_by")
"""Fields of :class:`DeployConfig` that are no keys of a deploy file."""
