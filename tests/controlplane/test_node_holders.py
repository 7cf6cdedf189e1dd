"""The node holders of docs/autoscaling.md as they stand there, but for namespace and nodes; no autoscaler runs."""

from pathlib import Path
from typing import Final

import yaml

from tests.controlplane.pool import Json, Pool, pod

_PAGE: Final = Path(__file__).parents[2] / "docs/autoscaling.md"


def holders(pool: Pool) -> Json:
    """The page's Deployment, on the pool's nodes only."""
    _, _, rest = _PAGE.read_text().partition("```yaml\n")
    body: Json = yaml.safe_load(rest.partition("```")[0])
    body["metadata"]["namespace"] = pool.name
    body["spec"]["template"]["spec"]["nodeSelector"] |= {"pool": pool.name}
    return body


def test_each_node_has_one_holder_and_all_of_its_devices(pool: Pool) -> None:
    """One that finds no node waits, as an autoscaler wants it, and is placed when the node comes."""
    nodes = {pool.node(2), pool.node(2)}
    pool.apply(holders(pool))

    def placed() -> list[str]:
        found = [each["spec"].get("nodeName", "") for each in pool.get("pods", "-l", "app=shared-nodes")]
        return sorted(filter(None, found)) if len(found) == 3 else []

    assert pool.eventually(placed, lambda seen: len(seen) == 2) == sorted(nodes)
    [waits] = [each for each in pool.get("pods", "-l", "app=shared-nodes") if "nodeName" not in each["spec"]]
    assert "Insufficient" not in str(pool.eventually(lambda: pool.reason(waits["metadata"]["name"])))
    nodes.add(pool.node(2))
    assert pool.eventually(placed, lambda seen: len(seen) == 3) == sorted(nodes)
    group = pool.group(count=2)
    pool.apply(pod("one", group))
    pool.running("one")
