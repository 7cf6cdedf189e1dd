"""The backup of docs/operations.md, and its restore: what people wrote is back, and pods are bound again."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from deviceshare_sandbox import debian
from deviceshare_sandbox.reports import Progress
from tests.controlplane.pool import GPU, Json, Pool, pod, refers

PAGE: Final = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def commands(containing: str) -> str:
    """The page's block of commands that has this; what isn't kubectl's is another program's to test."""
    blocks: list[str] = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    [found] = [block for block in blocks if containing in block]
    return re.sub(r"^helm .*\n", "", found, flags=re.MULTILINE)


def test_what_people_wrote_is_back_after_a_restore(pool: Pool, tmp_path: Path) -> None:
    """Labels and annotations of groups, quotas, and all of ours on nodes; nothing of the status, and no UID."""
    if shutil.which("jq") is None:
        debian.install(["jq"], Progress())
    kubectl = Path(pool.sandbox.plan.binaries.kubectl).parent
    environment = {**os.environ, "PATH": f"{kubectl}:{os.environ['PATH']}", "KUBECONFIG": str(pool.sandbox.kubeconfig)}

    def shell(script: str) -> None:
        subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, check=True)

    node = pool.node(inventory=f"{GPU}=1-3")
    pool.kubectl("annotate", "node", node, "example.com/other=mine")
    group = pool.group("team", 2, schedulingStrategy="spread")
    pool.kubectl("annotate", "sdg", group, "example.com/owner=ann")
    quota = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "DeviceQuota", "metadata": {"name": f"{pool.name}-q"}}
    pool.apply({**quota, "spec": {"groupSelector": {"matchLabels": {"pool": pool.name}}, "hard": {GPU: 3}}})
    pool.apply(pod("before", group))
    pool.running("before")
    named = (("sdg", group), ("dq", f"{pool.name}-q"))
    was = {name: pool.get(plural, name) for plural, name in named}

    shell(commands("> groups.json"))
    for file in ("groups.json", "nodes.json"):  # the cluster is other tests', too
        saved = json.loads((tmp_path / file).read_text())
        mine: list[Json] = [each for each in saved["items"] if each["metadata"]["name"].startswith(pool.name)]
        (tmp_path / file).write_text(json.dumps({**saved, "items": mine}))
    [saved_node] = json.loads((tmp_path / "nodes.json").read_text())["items"]
    assert saved_node["metadata"]["annotations"] == {"deviceshare.io/devices": f"{GPU}=1-3"}
    assert saved_node["metadata"]["labels"] == {"deviceshare.io/mode": "shared"}

    pool.kubectl("delete", "pod", "before", "-n", pool.name)
    for plural, name in named:
        pool.eventually(lambda what=(plural, name): pool.sandbox.kubectl("delete", *what).returncode == 0)  # type: ignore[misc]
        pool.eventually(lambda what=(plural, name): pool.sandbox.kubectl("get", *what).returncode != 0)  # type: ignore[misc]
    pool.kubectl("label", "node", node, "deviceshare.io/mode-")
    pool.kubectl("annotate", "node", node, "deviceshare.io/devices-")

    shell(commands("kubectl patch node"))
    for plural, name in named:
        now = pool.get(plural, name)
        assert now["spec"] == was[name]["spec"]
        assert now["metadata"]["uid"] != was[name]["metadata"]["uid"]
        before, after = ({**each["metadata"].get("annotations", {})} for each in (was[name], now))
        before.pop("kubectl.kubernetes.io/last-applied-configuration", None)
        assert (after, now["metadata"].get("labels")) == (before, was[name]["metadata"].get("labels"))
    pool.apply(pod("after", group))
    pool.running("after")
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers(f"{group}: {GPU}=1,2"))
    pool.kubectl("delete", "dq", f"{pool.name}-q")
