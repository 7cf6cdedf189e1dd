"""Webhooks that take connections and never answer; test_policies_alone.py has the like where policies admit pods."""

import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from deviceshare_sandbox import Sandbox
from tests.controlplane.test_webhooks import Namespace, a_group, a_pod, read
from tests.kubernetes_versions import before, since


@pytest.fixture
def asked(by_webhooks: Sandbox) -> Iterator[Namespace]:
    """A namespace of a cluster with webhooks."""
    name = f"asked-{uuid.uuid4().hex[:8]}"
    assert by_webhooks.kubectl("create", "namespace", name).returncode == 0
    yield Namespace(by_webhooks, name)
    assert by_webhooks.kubectl("delete", "namespace", name, "--wait=false").returncode == 0


@pytest.fixture
def stopped(by_webhooks: Sandbox, asked: Namespace) -> Iterator[Namespace]:
    """deviceshare hangs for the length of a test: it takes connections and never answers. There is a group."""
    asked.create(a_group(asked.namespace))
    pid = by_webhooks.pid("deviceshare")
    os.kill(pid, signal.SIGSTOP)
    yield asked
    os.kill(pid, signal.SIGCONT)
    asked.run("delete", "pods", "--all", "--force", "--grace-period=0")
    asked.run("delete", "sdg", asked.namespace)


@since(28)
def test_while_deviceshare_hangs_only_pods_of_groups_are_refused(stopped: Namespace) -> None:
    """The API server asks about no others, so it need not let any slip past that is not injected."""
    stopped.create(a_pod(None, "plain"))
    assert "failed calling webhook" in stopped.refused("create", "-f", "-", manifest=a_pod(stopped.namespace, "ours"))
    assert "failed calling webhook" in stopped.refused("delete", "sdg", stopped.namespace)


@before(28)
def test_while_deviceshare_hangs_only_its_own_pods_suffer(stopped: Namespace) -> None:
    """Others are created; one of a group stays unready and unbound; what is guarded stays as it is."""
    stopped.create(a_pod(None, "plain"))
    stopped.create(a_pod(stopped.namespace, "ours", schedulerName="deviceshare-scheduler"))

    assert not read(stopped.pod("ours")).injected
    assert "failed calling webhook" in stopped.refused("delete", "sdg", stopped.namespace)
