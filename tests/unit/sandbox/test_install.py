"""What the chart renders, as the sandbox installs it."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import helm
from deviceshare.domain.admission.settings import GATES, POLICIES, WEBHOOKS
from deviceshare_sandbox import install
from deviceshare_sandbox.binaries import Binaries
from deviceshare_sandbox.state import Layout, Options, SandboxPlan

Json = dict[str, Any]


def webhooks(documents: list[Json]) -> dict[str, Json]:
    """Every webhook by its name."""
    return {webhook["name"]: webhook for each in documents for webhook in each.get("webhooks", ())}


@pytest.mark.parametrize("version", ["1.20.2", "1.34.0"])
def test_webhooks_are_the_charts_but_for_their_address(version: str) -> None:
    """Each keeps its path, and trusts the sandbox's authority."""
    here = install.render(WEBHOOKS, Options(), f"v{version}")
    install.lead_here([each for each in here if "webhooks" in each], "https://127.0.0.1:1", b"authority")
    chart = webhooks(helm.render({"admission": "webhooks", "agent": {"enabled": True}}, version))
    found = webhooks(here)
    assert len(found) == 6
    for webhook in (*found.values(), *chart.values()):
        webhook["to"] = webhook.pop("clientConfig")
    for name, webhook in found.items():
        client, service = webhook.pop("to"), chart[name].pop("to")["service"]
        assert client["url"] == f"https://127.0.0.1:1{service['path']}"
        assert base64.b64decode(client["caBundle"]) == b"authority"
    assert found == chart


class RecordedInstallation:
    """A sandbox's directory after an installation, of which kubectl was not run but recorded."""

    def __init__(self, layout: Layout, admission: str) -> None:
        self.admission_file = layout.admission(admission)
        self.commands: list[tuple[str, ...]] = []

    @property
    def applied(self) -> list[Json]:
        """What was applied, in its order."""
        [files] = [command[1:] for command in self.commands if command[0] == "apply"]
        return [each for file in files for each in documents(Path(file.removeprefix("--filename=")))]


def documents(file: Path) -> list[Json]:
    return list(yaml.safe_load_all(file.read_text()))


async def installed(directory: Path, patch: pytest.MonkeyPatch, version: str, **options: Any) -> RecordedInstallation:
    """Installs for this Kubernetes version."""
    binaries = Binaries("apiserver", "controller-manager", "scheduler", "kubectl", "etcd", version)
    layout, plan = Layout(directory), SandboxPlan(Options(**options), binaries)
    with layout.lock():
        layout.prepare(plan)
    (layout.pki / "ca.crt").write_text("authority")
    done = RecordedInstallation(layout, plan.admission)

    async def record(_: Layout, __: Binaries, *arguments: str) -> None:
        done.commands.append(arguments)

    patch.setattr(install, "_kubectl", record)
    await install.install(layout, plan, webhook_url="https://127.0.0.1:1")
    return done


def named(objects: list[Json]) -> list[tuple[str, str]]:
    return [(each["kind"], each["metadata"]["name"]) for each in objects]


async def test_a_cluster_gets_definitions_rights_and_webhooks_and_nothing_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace comes before what is in it, and the CRDs are waited for."""
    done = await installed(tmp_path, monkeypatch, "v1.20.2")
    assert named(done.applied)[0] == ("Namespace", "deviceshare-system")
    kinds = {kind for kind, _ in named(done.applied)}
    rbac = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    webhook = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
    assert kinds == {"Namespace", "CustomResourceDefinition", *rbac, *webhook}
    waited = done.commands[-1]
    assert waited[0] == "wait" and {"crd/nodedevices.deviceshare.io", "crd/devicequotas.deviceshare.io"} < set(waited)


async def test_a_cluster_with_gates_gets_what_the_chart_has_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights and policies, both of which differ."""
    done = await installed(tmp_path, monkeypatch, "v1.36.0", placement=GATES, admission=POLICIES)
    agent = {"enabled": True, "pods": {"enabled": False}, "enforce": "evict"}
    values = {"admission": "policies", "placement": "gates", "agent": agent}
    chart = {(each["kind"], each["metadata"]["name"]): each for each in helm.render(values, "1.36.0")}
    ours = {("Namespace", "deviceshare-system"), ("ClusterRoleBinding", "sandbox-alice")}
    here = {key: each for key, each in zip(named(done.applied), done.applied, strict=True) if key not in ours}
    assert here == {key: chart[key] for key in here}
    assert ("MutatingAdmissionPolicy", "deviceshare-mutate-pods") in here
    rules = here["ClusterRole", "deviceshare-controller"]["rules"]
    assert {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]} in rules
    assert ("ClusterRole", "deviceshare-extender") not in here


async def test_webhooks_are_written_down_for_a_deviceshare_that_is_started_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not in force before."""
    done = await installed(tmp_path, monkeypatch, "v1.34.0", deviceshare=False)
    assert not any("Webhook" in kind for kind, _ in named(done.applied))
    assert ("ClusterRole", "deviceshare") in named(done.applied)
    assert all("Webhook" in kind for kind, _ in named(documents(done.admission_file)))


def test_helms_library_is_not_loaded_before_the_supervisor_forks() -> None:
    """Its threads would be gone afterwards: `sandbox up --detach` would wait for them for ever."""
    loaded = "import sys, deviceshare_sandbox.supervisor; sys.exit('helm_python' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


async def test_a_bare_cluster_gets_nothing_of_deviceshare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chart is to bring everything; but there is a person who may edit."""
    done = await installed(tmp_path, monkeypatch, "v1.34.0", bare=True)
    assert named(done.applied) == [("ClusterRoleBinding", "sandbox-alice")]
    assert not done.admission_file.exists()
