"""One real node at a time: a module has its own cluster or shares the one with the release in it.

Needs root. A missing program fails the tests: a suite that passes because it didn't run is worse than none.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deviceshare_sandbox import Options, running
from deviceshare_sandbox.cache import architecture
from release import __main__ as release_files
from release import image, version
from tests.kubernetes_versions import pytest_collection_modifyitems, pytest_terminal_summary
from tests.node.cluster import Cluster
from tests.node.release import Parts, Release, import_scheduler

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Prints how long a step of a newcomer's takes, for `pytest -s`."""
    began = time.monotonic()
    yield
    print(f"\n{what}: {time.monotonic() - began:.1f} s")


@pytest.fixture(scope="session")
def release_parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """What a release has for a cluster."""
    folder, number = tmp_path_factory.mktemp("dist"), version.version()
    built = image.build(folder, number, architecture())
    print(f"the image weighs {built.archive.stat().st_size / 1e6:.0f} MB, its base included")
    return Parts(built.archive, release_files.small(folder, number))


@pytest.fixture(scope="module")
def cluster(release_parts: Parts) -> Iterator[Cluster]:
    """A control plane and a real node, with nothing of deviceshare but the images."""
    with running(Options(real_node=True, deviceshare=False, bare=True)) as sandbox:
        with timed("the archive is on the node"):
            sandbox.import_image(release_parts.image)
        import_scheduler(sandbox)
        started = Cluster(sandbox)
        # Made by controllers and the kubelet, soon but not at once; what comes later is the tests'.
        own = {"lease.coordination.k8s.io/node-1", "serviceaccount/default"}
        started.eventually(lambda: own <= started.inventory())
        yield started


@pytest.fixture(scope="module")
def release(cluster: Cluster, release_parts: Parts) -> Iterator[Release]:
    """The chart, installed by Helm; all pods of it are ready."""
    with Release(cluster, release_parts.chart) as installed:
        with timed("the chart is installed and ready"):
            installed.install()
        yield installed


@pytest.fixture
def clear(cluster: Cluster, release: Release) -> Iterator[None]:
    """Whatever the test leaves of its own is gone before the next begins."""
    yield
    cluster.clear()
