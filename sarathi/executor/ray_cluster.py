"""The places in a Ray cluster that workers run at: checked and reserved.

Knows nodes, CPUs and GPUs, and nothing of what runs there. Whatever cannot be had is told at once, in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sarathi.errors import FieldError

RESERVE_SECONDS = 10.0  # a worker that has just ended frees its CPU a moment later
_SHARE_OF_NODE = 0.001  # of a node's own resource, which says where something runs and never runs out


class Slot(NamedTuple):
    """Where one worker is to run. None: anywhere, on a device that Ray chooses."""

    node: str | None = None  # IP address
    device: int | None = None  # number of a CUDA device of that node


class Reservation(NamedTuple):
    """What `reserve` set aside: one bundle a worker, until it is released."""

    placement_group: Any
    slots: list[Slot]  # one a worker
    is_mapped: bool  # whether the order of the workers is given
    gpus_of_ray: int  # for each worker: 1 where Ray chooses its device

    def options(self, index: int) -> dict[str, Any]:
        """Ray's options of the actor that takes the bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": 1,
            "num_gpus": self.gpus_of_ray,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.placement_group, placement_group_bundle_index=index
            ),
        }

    def release(self) -> None:
        from ray.util import remove_placement_group

        remove_placement_group(self.placement_group)


def choose_device(name: str) -> str:
    """ "cpu" or "cuda": what "auto" stands for in the cluster that was joined. Raises FieldError of `device`."""
    has_gpus = any(_gpus(node) for node in _nodes().values())
    if name == "auto":
        return "cuda" if has_gpus else "cpu"
    if name == "cuda" and not has_gpus:
        raise FieldError("device", f"'cuda' is not available: no node of the Ray cluster has a GPU ({_said()})")
    return name


def reserve(num_workers: int, device: str, mapping: Sequence[Sequence[Any]] | None) -> Reservation:
    """Set a CPU aside for each worker, and a GPU for each where `device` is "cuda".

    Args:
        mapping: for each worker the IP address of its node (None: any) and the number of its device there.

    Raises FieldError of `resource_mapping`, or of `executor_config_type` where the cluster is too small or busy.
    """
    import ray
    from ray.util import placement_group, remove_placement_group

    slots = [Slot()] * num_workers if mapping is None else _slots(mapping, num_workers, device)
    gpus_of_ray = 1 if device == "cuda" and mapping is None else 0
    bundles = [_bundle(slot, gpus_of_ray) for slot in slots]
    needed: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            needed[name] = needed.get(name, 0) + amount
    _check_amounts(needed, ray.cluster_resources(), f"it has {_said()}")
    group = placement_group(bundles, strategy="PACK")
    reserved = False
    try:
        reserved = group.wait(RESERVE_SECONDS)
    finally:
        if not reserved:
            remove_placement_group(group)
    if not reserved:
        free = ray.available_resources()
        _check_amounts(needed, free, f"free are {_amounts(free)}, others hold the rest of {_said()}")
        raise FieldError(
            "executor_config_type", f"RAY: no nodes with {_amounts(needed)} free for workers of one CPU each; {_said()}"
        )
    return Reservation(group, slots, mapping is not None, gpus_of_ray)


def _slots(mapping: Sequence[Sequence[Any]], num_workers: int, device: str) -> list[Slot]:
    if len(mapping) != num_workers:
        raise FieldError("resource_mapping", f"{len(mapping)} places for {num_workers} workers; one for each")
    nodes = _nodes()
    slots = [Slot(node and node.removeprefix("node:"), number) for node, number in mapping]
    for slot in slots:
        if slot.node is not None and slot.node not in nodes:
            raise FieldError("resource_mapping", f"{slot.node} is no node of the Ray cluster; it has {_said()}")
    if device != "cuda":
        return [slot._replace(device=None) for slot in slots]
    for slot in slots:
        for node in nodes.values() if slot.node is None else [nodes[slot.node]]:
            if (slot.device or 0) >= _gpus(node):
                text = f"{slot.node or 'any node'} has no device {slot.device}; the Ray cluster has {_said()}"
                raise FieldError("resource_mapping", text)
        if slots.count(slot) > 1 and slot.node is not None:
            raise FieldError("resource_mapping", f"two workers are to have device {slot.device} of {slot.node}")
    return slots


def _bundle(slot: Slot, gpus_of_ray: int) -> dict[str, float]:
    bundle: dict[str, float] = {"CPU": 1}
    if gpus_of_ray:
        bundle["GPU"] = gpus_of_ray
    if slot.node is not None:
        bundle[f"node:{slot.node}"] = _SHARE_OF_NODE
    return bundle


def _check_amounts(needed: Mapping[str, float], there: Mapping[str, float], said: str) -> None:
    if any(amount > there.get(name, 0) for name, amount in needed.items()):
        raise FieldError("executor_config_type", f"RAY: the workers need {_amounts(needed)} of the cluster; {said}")


class Node(NamedTuple):
    address: str  # IP
    raylet: str  # host:port where Ray's process of the node listens


def nodes_by_id() -> dict[str, Node]:
    """All nodes there have been, by Ray's node ids."""
    import ray

    return {
        node["NodeID"]: Node(node["NodeManagerAddress"], f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
        for node in ray.nodes()
    }


def _nodes() -> dict[str, dict[str, Any]]:
    """The nodes that are up, by IP address."""
    import ray

    return {node["NodeManagerAddress"]: node for node in ray.nodes() if node["Alive"]}


def _gpus(node: Mapping[str, Any]) -> int:
    return int(node["Resources"].get("GPU", 0))


def _said() -> str:
    """What the cluster has, node by node."""
    return "; ".join(f"{ip}: {_amounts(node['Resources'])}" for ip, node in sorted(_nodes().items()))


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(_named(resources, ("CPU", "GPU")))


def _named(resources: Mapping[str, float], names: Iterable[str]) -> list[str]:
    return [f"{resources.get(name, 0):g} {name}s" for name in names if name == "CPU" or name in resources]
