"""One real control plane for the whole test session; each test has a namespace, nodes and groups of its own.

With pytest-xdist (`-n 4`) the processes of the tests share it: the process that hands out the tests starts and ends it.
A file's tests follow one another in one process, and so do all of `rough/`, which have a control plane of their own.

A missing binary fails the tests: a suite that passes because it didn't run is worse than none.
"""

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare_sandbox import ENV, Layout, Options, Sandbox, running
from tests.controlplane.pool import PATIENCE_SECONDS, Pool
from tests.kubernetes_versions import pytest_collection_modifyitems, pytest_terminal_summary

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]

Kubectl = Callable[..., str]

OPTIONS = Options(nodes=2, devices=4, program=str(Path(__file__).with_name("hurried.py")))
_STARTED = pytest.StashKey[tuple[ExitStack, Sandbox]]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells another process of the tests where their cluster is; starts it before the first."""
    stash = node.config.stash
    if _STARTED not in stash:
        stack = ExitStack()
        stash[_STARTED] = stack, stack.enter_context(running(OPTIONS))
    node.workerinput["sandbox"] = str(stash[_STARTED][1].layout.directory)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the shared cluster."""
    if _STARTED in config.stash:
        config.stash[_STARTED][0].close()


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out files, the largest first, and those of `rough/` as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "rough" if "/rough/" in file else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Has pytest-xdist hand out files."""
    return FilesTogether(config, log)


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The control plane of all processes of the tests."""
    if directory := getattr(request.config, "workerinput", {}).get("sandbox"):
        yield Sandbox(Layout(Path(directory)))
        return
    with running(OPTIONS) as started:
        yield started


@pytest.fixture
def sandbox(shared: Sandbox) -> Sandbox:
    """Two nodes with four devices each, both schedulers, deviceshare and its webhooks or policies."""
    return shared


@pytest.fixture
def by_webhooks(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The same cluster where its pods are admitted by webhooks, else another one where they are."""
    if sandbox.plan.admission == WEBHOOKS:
        yield sandbox
        return
    with running(Options(nodes=1, devices=4, admission=WEBHOOKS)) as started:
        yield started


@pytest.fixture
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
