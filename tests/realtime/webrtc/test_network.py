"""How a call's media is reached: ports, an address before a NAT, STUN, TURN, names and no candidates at all."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from pathlib import Path
from typing import Any

import aioice.ice
import aioice.stun
import msgspec
import pytest
from aiortc import RTCIceServer
from live_sessions import manager_of, settled
from rtc_client import LOOPBACK, RtcClient, calling, tone
from scripted_engine import ScriptedEngine
from turn_server import PASSWORD, SECRET, USER, turn_server

from duologue.engine.deploy.config import DeployConfig, DeployError, IceServer, WebRtcDeploy
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.ice_servers import for_clients, link_headers
from duologue.realtime.webrtc_options import WebRtcOptions, laid_over

SDP = {"Content-Type": "application/sdp"}


def settings(**changes: Any) -> EdgeSettings:
    return EdgeSettings(webrtc=msgspec.structs.replace(LOOPBACK, **changes))


def candidates(sdp: str) -> list[tuple[str, str, int]]:
    """Type, address and port of each; sections of one bundle repeat them."""
    found = dict.fromkeys(re.findall(r"a=candidate:\S+ \d udp \d+ (\S+) (\d+) typ (\w+)", sdp))
    return [(kind, address, int(port)) for address, port, kind in found]


async def answer_to(http: Any, client: RtcClient) -> Any:
    return await http.post("/v1/realtime/calls", content=await client.offer(), headers=SDP)


async def converse(client: RtcClient) -> None:
    """Media in, events out: the call is up."""
    client.microphone.say(tone(400))
    await client.until("input_audio_buffer.speech_started")


def free_ports(count: int) -> tuple[int, int]:
    """A range of UDP ports that nobody uses."""
    for first in range(42_000, 48_000, count):
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
        try:
            for number, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + number))
            return first, first + count - 1
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no free ports")


@pytest.mark.parametrize("media_workers", [0, 2])
async def test_media_stays_within_the_range_of_ports_and_says_when_it_is_full(serve: Any, media_workers: int) -> None:
    first, last = free_ports(2)
    ranged = settings(udp_ports=(first, last), media_workers=media_workers)
    async with (
        serve(manager_of(ScriptedEngine()), settings=ranged) as edge,
        edge.http() as http,
        calling(http) as one,
        calling(http) as other,
    ):
        await converse(one)
        await converse(other)
        used = {port for call in (one, other) for _, _, port in candidates(call.connection.remoteDescription.sdp)}
        assert used == {first, last}
        third = RtcClient()
        refused = await answer_to(http, third)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "duologue.capacity")
        assert edge.sessions.open_sessions == 2
        await one.close()
        await settled(lambda: edge.sessions.open_sessions == 1)
        await third.close()
        async with calling(http) as fourth:  # the port is free again
            await converse(fourth)


@pytest.mark.parametrize("media_workers", [0, 1])
async def test_an_advertised_address_stands_beside_the_local_one(serve: Any, media_workers: int) -> None:
    mapped = settings(advertise="203.0.113.7", media_workers=media_workers)
    async with (
        serve(manager_of(ScriptedEngine()), settings=mapped) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        await converse(client)
        (host, srflx) = candidates(client.connection.remoteDescription.sdp)
        assert (host[0], host[1]) == ("host", "127.0.0.1")
        assert srflx == ("srflx", "203.0.113.7", host[2])


async def test_a_peer_that_knows_only_the_advertised_address_gets_through(serve: Any) -> None:
    """A NAT that maps port by port: here it is the loopback network, all of which is this host."""
    async with (
        serve(manager_of(ScriptedEngine()), settings=settings(addresses=["127.0.0.2"], advertise="127.0.0.2")) as edge,
        edge.http() as http,
    ):
        client = RtcClient()
        try:
            answer = await answer_to(http, client)
            seen = "".join(line for line in answer.text.splitlines(True) if " typ host" not in line)
            await client.take(seen)
            await client.until("session.created")
            await converse(client)
        finally:
            await client.close()


async def test_fc_151_a_peer_without_candidates_is_learnt_when_it_calls_in(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=settings()) as edge, edge.http() as http:
        client = RtcClient()
        try:
            sdp = re.sub(r"a=candidate:.*\r\n|a=end-of-candidates\r\n", "", await client.offer())
            name = "a=candidate:1 1 udp 2113937151 6f3a8c1e-0000-4000-8000-000000000000.local 50000 typ host\r\n"
            with_name = sdp.replace("a=ice-ufrag", f"{name}a=ice-ufrag", 1)
            answer = await http.post("/v1/realtime/calls", content=with_name, headers=SDP)
            assert answer.status_code == 201
            await client.take(answer.text)
            await client.until("session.created")
            await converse(client)
        finally:
            await client.close()


async def test_stun_and_turn_of_a_real_coturn(serve: Any, tmp_path: Path) -> None:
    with turn_server(tmp_path) as (port, log):
        servers = [
            IceServer(urls=[f"stun:127.0.0.1:{port}"]),
            IceServer(urls=[f"turn:127.0.0.1:{port}?transport=udp"], username=USER, credential=PASSWORD),
        ]
        async with (
            serve(manager_of(ScriptedEngine()), settings=settings(ice_servers=servers)) as edge,
            edge.http() as http,
            calling(http) as client,
        ):
            kinds = [kind for kind, _, _ in candidates(client.connection.remoteDescription.sdp)]
            assert sorted(kinds) == ["host", "relay", "srflx"]
        relayed = settings(ice_servers=servers, relay_only=True)
        async with (
            serve(manager_of(ScriptedEngine()), settings=relayed) as edge,
            edge.http() as http,
            calling(http) as client,
        ):
            offered = candidates(client.connection.remoteDescription.sdp)
            assert [kind for kind, _, _ in offered] == ["relay"]
            await converse(client)  # everything goes through coturn
        assert "ALLOCATE processed, success" in log.read_text()


async def test_a_client_is_given_an_account_that_ends_and_a_real_coturn_takes_it(serve: Any, tmp_path: Path) -> None:
    with turn_server(tmp_path, secret=True) as (port, log):
        turn = IceServer(urls=[f"turn:127.0.0.1:{port}?transport=udp"], secret=SECRET)
        async with (
            serve(manager_of(ScriptedEngine()), settings=settings(ice_servers=[turn], relay_only=True)) as edge,
            edge.http() as http,
        ):
            given = (await http.get("/v1/realtime/ice_servers")).json()
            assert given["ttl"] == 86_400
            (entry,) = given["iceServers"]
            ends, _, name = entry["username"].partition(":")
            assert (abs(int(ends) - time.time() - 86_400) < 60, name) == (True, "client")
            async with calling(http, relays=[RTCIceServer(**entry)]) as client:
                ours = candidates(client.connection.localDescription.sdp)
                theirs = candidates(client.connection.remoteDescription.sdp)
                assert {kind for kind, _, _ in [*ours, *theirs]} == {"relay"}
                await converse(client)
            assert log.read_text().count("ALLOCATE processed, success") >= 2
            assert SECRET not in repr(turn)


async def test_clients_are_told_of_servers_but_of_no_password_that_does_not_end(serve: Any) -> None:
    servers = [
        IceServer(urls=["stun:stun.example.org:3478"]),
        IceServer(urls=["turn:a.example.org", "turns:a.example.org"], secret="s"),
        IceServer(urls=["turn:b.example.org"], username=USER, credential=PASSWORD),
        IceServer(urls=["turn:c.example.org"], username='o"brien', credential=PASSWORD, for_clients=True),
        IceServer(urls=["stun:inside.example.org"], for_clients=False),
    ]
    edge_settings = settings(ice_servers=servers)
    async with serve(manager_of(ScriptedEngine()), keys=["k"], settings=edge_settings) as edge, edge.http() as http:
        page = {"Origin": "https://app.example"}
        refused = await http.get("/v1/realtime/ice_servers", headers=page)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "*")
        bearer = {"Authorization": "Bearer k"}
        minted = (await http.post("/v1/realtime/client_secrets", headers=bearer)).json()["value"]
        for key in ("k", minted):
            answer = await http.get("/v1/realtime/ice_servers", headers={**page, "Authorization": f"Bearer {key}"})
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
            entries = answer.json()["iceServers"]
            assert [entry["urls"][0].partition(".")[0] for entry in entries] == ["stun:stun", "turn:a", "turn:c"]
            assert entries[0] == {"urls": ["stun:stun.example.org:3478"]}
        shown = msgspec.structs.replace(edge_settings.webrtc, ice_servers=servers[:2] + servers[3:])
        links = link_headers(for_clients(shown).iceServers)
        assert links[0] == '<stun:stun.example.org:3478>; rel="ice-server"'
        assert links[2].startswith('<turns:a.example.org>; rel="ice-server"; username="')
        assert 'username="o\\"brien"; credential="sesame"; credential-type="password"' in links[3]


async def test_the_answer_to_an_offer_links_the_servers(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.realtime.webrtc.ice._GATHER_TIMEOUT_S", 0.2)
    servers = [IceServer(urls=["stun:127.0.0.1:9"])]
    async with (
        serve(manager_of(ScriptedEngine()), settings=settings(ice_servers=servers, addresses=["127.0.0.1"])) as edge,
        edge.http() as http,
    ):
        client = RtcClient()
        answer = await answer_to(http, client)
        assert answer.headers.get_list("link") == ['<stun:127.0.0.1:9>; rel="ice-server"']
        await client.close()


async def test_a_stun_server_that_is_silent_costs_time_and_no_call(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.realtime.webrtc.ice._GATHER_TIMEOUT_S", 0.2)
    silent = [IceServer(urls=["stun:127.0.0.1:9"])]
    async with (
        serve(manager_of(ScriptedEngine()), settings=settings(ice_servers=silent)) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        assert [kind for kind, _, _ in candidates(client.connection.remoteDescription.sdp)] == ["host"]


def test_without_addresses_every_interface_is_used_and_loopback_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from duologue.realtime.webrtc import ice

    monkeypatch.setattr(ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["192.0.2.2"])
    assert ice.host_addresses(WebRtcDeploy()) == ["192.0.2.2"]
    monkeypatch.setattr(ice, "get_host_addresses", lambda use_ipv4, use_ipv6: [])
    assert ice.host_addresses(WebRtcDeploy()) == ["127.0.0.1"]
    assert ice.host_addresses(WebRtcDeploy(addresses=["127.0.0.3"])) == ["127.0.0.3"]
    assert ice.configuration(WebRtcDeploy()).iceServers == [], "or the library asks a public server"


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_lie_over_the_deploy_file() -> None:
    deploy = DeployConfig(pipeline="assistant", webrtc=WebRtcDeploy(advertise="203.0.113.1", udp_ports=(1, 2)))
    assert laid_over(deploy, WebRtcOptions()) == deploy
    servers = ["stun:a:1", "turn:b:2?transport=tcp,me,se,cret"]
    options = WebRtcOptions("203.0.113.7", "40000-40100", servers, "2")
    webrtc = laid_over(deploy, options).webrtc
    assert (webrtc.media_workers, laid_over(deploy, WebRtcOptions(media_workers="auto")).webrtc) == (2, deploy.webrtc)
    assert (webrtc.advertise, webrtc.udp_ports) == ("203.0.113.7", (40_000, 40_100))
    assert [(server.urls, server.username, server.credential) for server in webrtc.ice_servers] == [
        (["stun:a:1"], None, None),
        (["turn:b:2?transport=tcp"], "me", "se,cret"),
    ]
    assert "se,cret" not in repr(webrtc)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (WebRtcOptions(advertise="host.example"), "--advertise-address: 'host.example'"),
        (WebRtcOptions(udp_ports="40100-40000"), "--udp-ports: '40100-40000'"),
        (WebRtcOptions(udp_ports="all"), "--udp-ports: 'all'"),
        (WebRtcOptions(ice_servers=["http://a"]), "--ice-server: 'http://a'"),
        (WebRtcOptions(ice_servers=["turn:a,secret"]), "--ice-server: 'turn:a'"),
        (WebRtcOptions(media_workers="65"), "--media-workers: '65'"),
        (WebRtcOptions(media_workers="many"), "--media-workers: 'many'"),
    ],
)
def test_a_wrong_option_is_named(options: WebRtcOptions, words: str) -> None:
    with pytest.raises(DeployError) as refused:
        laid_over(DeployConfig(pipeline="assistant"), options)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


class LossyReplies:
    """Between a client and its sockets: of the replies to STUN requests only every fifth leaves in time. The others are
    lost, or come when nobody waits for them any more; all that come, come twice."""

    def __init__(self, client: RtcClient) -> None:
        self.lost = self.late = self.in_time = 0
        self.enough = asyncio.Event()
        connection = client.connection.getTransceivers()[0].receiver.transport.transport._connection
        connection._query_consent_task.cancel()  # the server checks; the client only replies
        for protocol in connection._protocols:
            self._watch(protocol.transport)

    def _watch(self, transport: Any) -> None:
        send, loop = transport.sendto, asyncio.get_running_loop()

        def sendto(data: bytes, address: Any) -> None:
            if data[:2] != b"\x01\x01":
                send(data, address)
                return
            number = self.lost + self.late + self.in_time
            if number == 40:
                self.enough.set()
            if number % 5 == 4:
                self.in_time += 1
                send(data, address)
                send(data, address)
            elif number % 5 == 2:
                self.late += 1
                loop.call_later(0.1, send, data, address)
                loop.call_later(0.1, send, data, address)
            else:
                self.lost += 1

        transport.sendto = sendto


async def test_fc_159_a_call_outlives_consent_checks_whose_replies_are_lost(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty checks: 200 s of a call at the interval of RFC 7675. Six in a row without a reply would end it."""
    monkeypatch.setattr(aioice.ice, "CONSENT_INTERVAL", 0.02)
    monkeypatch.setattr(aioice.stun, "RETRY_RTO", 0.05)
    engine = ScriptedEngine()
    async with (
        serve(manager_of(engine), settings=settings()) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        replies = LossyReplies(client)
        async with asyncio.timeout(60):
            await replies.enough.wait()
        assert min(replies.lost, replies.late, replies.in_time) >= 7
        assert client.channel is not None
        assert client.channel.readyState == "open"
        await converse(client)
        # and a peer that never replies again is missed
        client.vanish()
        await settled(lambda: edge.sessions.open_sessions == 0)
    assert not [record for record in caplog.records if record.name == "asyncio" and record.exc_info]
