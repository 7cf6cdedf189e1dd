"""The health check for Argo CD in docs/gitops.md, run by Lua over statuses as deviceshare writes them.

Argo CD runs such scripts by Lua 5.1, with the object as `obj`, and takes a table with `status` and `message`.
https://argo-cd.readthedocs.io/en/stable/operator-manual/health/#custom-health-checks
"""

import functools
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from lupa import lua51

from deviceshare.domain.answers.group_status import desired_status
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus

Json = dict[str, Any]

_PAGE: Final = Path(__file__).parents[3] / "docs/gitops.md"
_KEY: Final = "resource.customizations.health.deviceshare.io_SharedDeviceGroup"
NODE: Final = a_node()
FREE: Final = a_fleet(NODE, ledgers=(a_ledger(),))
FULL: Final = a_fleet(NODE, ledgers=(a_ledger(other=gpus(0, 1, 2, 3)),))
HELD: Final = a_fleet(NODE, ledgers=(a_ledger(team=gpus(0, 1)),))
LOST: Final = a_fleet(ledgers=(a_ledger(team=gpus(0, 1)),))


@functools.cache
def script() -> str:
    """The page's script for groups."""
    [block] = [each for each in _PAGE.read_text().split("```yaml\n")[1:] if _KEY in each]
    text: str = yaml.safe_load(block.partition("```")[0])["data"][_KEY]
    return text


def health(group: Json) -> tuple[str, str]:
    """What Argo CD shows of the object: its health, and why."""
    lua = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    lua.globals().obj = lua.table_from(group, recursive=True)
    said = lua.execute(script())
    return said["status"], said["message"]


def written(group: Group, fleet: Fleet, *pods: Pod, generation: int = 3) -> Json:
    """The object with the status that the leader writes; what is absent isn't there."""
    home = NODE if group.node and fleet is not LOST else None
    status = desired_status(group, fleet, home=home, pods=pods, now="2026-01-01T00:00:00Z")
    whole: Json = msgspec.to_builtins(msgspec.structs.replace(group, status=status))
    whole["metadata"] |= {"generation": generation}
    return {key: {k: v for k, v in part.items() if v is not None} for key, part in whole.items() if part}


WAITS = a_pod()


@pytest.mark.parametrize(
    ("group", "fleet", "pods", "phase", "shown"),
    [
        pytest.param(a_group(node="n1"), HELD, (), BOUND, "Healthy", id="bound"),
        pytest.param(a_group(), FREE, (), PENDING, "Healthy", id="no-pods"),
        pytest.param(a_group(), FULL, (WAITS,), PENDING, "Progressing", id="waiting"),
        pytest.param(a_group(count=9), FREE, (WAITS,), PENDING, "Degraded", id="too-large"),
        pytest.param(a_group(count=0), FREE, (WAITS,), PENDING, "Degraded", id="invalid"),
        pytest.param(a_group(node="n1"), LOST, (), DEGRADED, "Degraded", id="lost-node"),
    ],
)
def test_each_phase_has_its_health(group: Group, fleet: Fleet, pods: tuple[Pod, ...], phase: str, shown: str) -> None:
    """With the text of the condition Ready."""
    body = written(group, fleet, *pods)
    assert body["status"]["phase"] == phase
    ready = next(each for each in body["status"]["conditions"] if each["type"] == "Ready")
    assert health(body) == (shown, ready["message"])
    assert GPU in str(body["spec"])


def test_what_deviceshare_has_not_looked_at_is_progressing() -> None:
    """No status yet, or that of an earlier spec."""
    body = written(a_group(node="n1"), HELD)
    assert health(body)[0] == "Healthy"
    later: Json = {**body, "metadata": {**body["metadata"], "generation": 4}}
    unseen: list[Json] = [later, {"metadata": {}}, {**body, "status": {}}]
    for old in unseen:
        assert health(old) == ("Progressing", "deviceshare has not looked at it yet")


def test_a_group_that_is_being_deleted_is_progressing() -> None:
    """Whatever its status says."""
    body = written(a_group(node="n1"), HELD)
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert health(body) == ("Progressing", "it is being deleted")
