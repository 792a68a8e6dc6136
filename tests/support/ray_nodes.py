"""A Ray cluster of two nodes on this host, on the loopback interface."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

FAR = {"far": 100.0}
"""What only the second node has."""


class Nodes:
    """The cluster, and what its object stores hold."""

    def __init__(self, cluster: Any, address: str) -> None:
        self.cluster = cluster
        self.address = address

    def add(self, **resources: float) -> Any:
        """One more node. On the main thread only: Ray sets handlers of signals."""
        return self.cluster.add_node(**_node(resources))

    def remove(self, node: Any) -> None:
        """Kill everything of a node at once, as a power cut would: its raylet, and the workers it has started."""
        raylet = node.all_processes["raylet"][0].process.pid
        for process in [*psutil.Process(raylet).children(recursive=True), psutil.Process(raylet)]:
            process.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def held(self) -> int:
        """Bytes in the stores of all nodes, as their raylets report it."""
        import grpc
        import ray
        from ray._private.internal_api import node_stats

        total = 0
        for node in ray.nodes():
            if node["Alive"]:
                try:
                    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
                except grpc.RpcError:
                    continue  # it is gone, and Ray has not noticed yet
                total += stats.store_stats.object_store_bytes_used
        return total

    def wait_for_no_objects(self, timeout_s: float = 20.0) -> None:
        """Ray frees in the background, in batches; this asks until it is done.

        Of an object whose owner has died Ray keeps a marker of one byte.
        """
        deadline = time.monotonic() + timeout_s
        while (left := self.held()) > 1000:
            assert time.monotonic() < deadline, f"{left} bytes left in the store"
            time.sleep(0.1)  # nothing tells when the stores have been swept


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Start the cluster and connect to it; nothing of it is left afterwards."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the path of a socket has at most 107 characters
    environment = {
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the actors import the scripted stages
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    import ray
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    ray_constants.ENABLE_RAY_CLUSTER = False  # what makes Ray take 127.0.0.1 for this host's address
    children = set(psutil.Process().children(recursive=True))
    os.mkdir(os.path.join(folder, "ray"))
    head = {"include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args=_node({"near": 100.0}) | head)
    try:
        cluster.add_node(**_node(FAR))
        ray.init(address=cluster.address, namespace="tests", log_to_driver=False, configure_logging=False)
        yield Nodes(cluster, cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()
        started = set(psutil.Process().children(recursive=True)) - children
        _, alive = psutil.wait_procs(list(started), timeout=20)
        assert not alive, f"processes left: {alive}"
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _node(resources: dict[str, float]) -> dict[str, Any]:
    return {
        "num_cpus": 8,
        "resources": resources,
        "object_store_memory": 100 * 2**20,
        "node_ip_address": "127.0.0.1",
    }
