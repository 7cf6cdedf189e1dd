"""One real control plane for the whole test session; each test has a namespace and groups of its own.

A missing binary fails the tests: a suite that passes because it didn't run is worse than none.
"""

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare_sandbox import ENV, Options, Sandbox, running
from tests.controlplane.pool import PATIENCE_SECONDS, Pool
from tests.kubernetes_versions import pytest_collection_modifyitems, pytest_terminal_summary

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]

Kubectl = Callable[..., str]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Two nodes with four devices each, both schedulers, deviceshare and its webhooks or policies."""
    with running(Options(nodes=2, devices=4)) as started:
        yield started


@pytest.fixture(scope="session")
def by_webhooks(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The same cluster where its pods are admitted by webhooks, else another one where they are."""
    if sandbox.plan.admission == WEBHOOKS:
        yield sandbox
        return
    with running(Options(nodes=1, devices=4, admission=WEBHOOKS)) as started:
        yield started


@pytest.fixture(scope="session")
def kubectl(sandbox: Sandbox) -> Kubectl:
    """Runs kubectl as the cluster's admin, or as `identity`; raises CalledProcessError with what it said."""

    def run(*arguments: str, stdin: str | None = None, identity: str = "") -> str:
        done = sandbox.kubectl(*arguments, stdin=stdin, identity=identity)
        if done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, arguments, done.stdout, done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Asks until the answer is true, and returns it; fails after a time that no test should come near."""

    def wait(question: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while not (answer := question()):
            assert time.monotonic() < deadline, f"still {answer!r} after {seconds:.0f} s"
            time.sleep(0.1)
        return answer

    return wait


@pytest.fixture
def namespace(kubectl: Kubectl, eventually: Callable[..., Any]) -> Iterator[str]:
    """A namespace of the test's own; its pods are gone when the next test begins."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")
    # The namespace itself takes five seconds more, which nobody needs to wait for.
    eventually(lambda: kubectl("get", "pods", "--namespace", name, "--output=name") == "")


@pytest.fixture
def environment(kubectl: Kubectl, eventually: Callable[..., Any]) -> Callable[[str, str], dict[str, dict[str, str]]]:
    """`environment(namespace, pod)`: what each container sees, once the pod has started."""

    def read(namespace: str, pod: str) -> dict[str, dict[str, str]]:
        path = "jsonpath={.metadata.annotations." + ENV.replace(".", r"\.") + "}"
        recorded: dict[str, dict[str, str]] = json.loads(
            eventually(lambda: kubectl("get", "pod", pod, "--namespace", namespace, "--output", path))
        )
        return recorded

    return read


@pytest.fixture
def pool(sandbox: Sandbox) -> Iterator[Pool]:
    """A namespace and, as far as the test adds them, nodes and groups of its own; pods of groups stay on its nodes."""
    mine = Pool(sandbox, f"test-{uuid.uuid4().hex[:8]}")
    yield mine
    mine.end()
