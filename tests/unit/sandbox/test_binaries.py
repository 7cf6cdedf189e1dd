"""Which set of binaries is taken, and what is said when there is none."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from deviceshare_sandbox import binaries
from deviceshare_sandbox.binaries import NODE, REQUIRED, find
from deviceshare_sandbox.reports import Progress, SandboxError


@pytest.fixture
def said() -> io.StringIO:
    """What the person sees."""
    return io.StringIO()


@pytest.fixture
def progress(said: io.StringIO) -> Progress:
    """Reports into `said`."""
    return Progress(Console(file=said, width=200))


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing installed, nothing cached, nothing to download or to build."""

    def unavailable(*_: object) -> Path:
        raise SandboxError("not from here")

    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("DEVICESHARE_KUBERNETES_VERSION", raising=False)
    monkeypatch.setattr(binaries, "_SYSTEM_DIRECTORIES", ())
    for module, name in (
        ("release", "download"),
        ("release", "download_etcd"),
        ("debian", "build"),
        ("debian", "fetch_etcd"),
    ):
        monkeypatch.setattr(f"deviceshare_sandbox.{module}.{name}", unavailable)


def place(directory: Path, version: str = "v1.30.1", names: Sequence[str] = (*REQUIRED, "etcd")) -> Path:
    """A directory with these executables, which say that they are this release."""
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        (directory / name).chmod(0o755)
    return directory


def test_kubebuilder_assets_come_before_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    """Who sets the variable means it."""
    place(tmp_path / "path", "v1.29.0")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(place(tmp_path / "assets")))
    found = find(progress)
    assert found.kube_apiserver == str(tmp_path / "assets/kube-apiserver")
    assert (found.version, found.minor) == ("v1.30.1", 30)


def test_incomplete_kubebuilder_assets_are_named_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress, said: io.StringIO
) -> None:
    """envtest's own archive holds no scheduler."""
    place(tmp_path / "path")
    monkeypatch.setenv(
        "KUBEBUILDER_ASSETS", str(place(tmp_path / "assets", names=["kube-apiserver", "kubectl", "etcd"]))
    )
    assert find(progress).kubectl == str(tmp_path / "path/kubectl")
    assert "lacks kube-controller-manager, kube-scheduler" in said.getvalue()


def test_a_lone_kubectl_on_path_is_no_set(tmp_path: Path, progress: Progress) -> None:
    """Every laptop has one, of any release."""
    place(tmp_path / "path", names=["kubectl", "etcd"])
    cached = place(tmp_path / "cache/deviceshare/kubernetes/v1.20.2/bin", "v1.20.2", REQUIRED)
    found = find(progress)
    assert found.kubectl == str(cached / "kubectl")
    assert found.etcd == str(tmp_path / "path/etcd")


def test_the_newest_release_in_the_cache_is_taken(tmp_path: Path, progress: Progress) -> None:
    """By number: 1.9 is older than 1.30."""
    for version in ("v1.9.9", "v1.30.1", "v1.20.2"):
        place(tmp_path / f"cache/deviceshare/kubernetes/{version}/bin", version)
    assert find(progress).version == "v1.30.1"


def test_a_wanted_release_passes_over_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    """To try deviceshare on the release that one's cluster runs."""
    for version in ("v1.30.1", "v1.20.2"):
        place(tmp_path / f"cache/deviceshare/kubernetes/{version}/bin", version)
    monkeypatch.setenv("DEVICESHARE_KUBERNETES_VERSION", "v1.20.2")
    assert find(progress).version == "v1.20.2"


def test_only_a_real_node_needs_a_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress) -> None:
    """KUBEBUILDER_ASSETS never holds one; for a real node the whole set then comes from elsewhere."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(place(tmp_path / "assets")))
    place(tmp_path / "cache/deviceshare/kubernetes/v1.20.2/bin", "v1.20.2", (*REQUIRED, *NODE, "etcd"))
    assert find(progress).kube_apiserver == str(tmp_path / "assets/kube-apiserver")
    for_real = find(progress, node=True)
    assert for_real.version == "v1.20.2"
    assert for_real.kubelet.endswith("v1.20.2/bin/kubelet")


def test_without_any_binaries_every_place_and_the_way_out_are_named(progress: Progress) -> None:
    """A bare "not found" would leave the person with nothing to do."""
    with pytest.raises(SandboxError) as error:
        find(progress)
    assert str(error.value).count("not from here") == 2
    assert "set KUBEBUILDER_ASSETS" in str(error.value)


def test_a_missing_etcd_is_said_with_the_command_that_mends_it(tmp_path: Path, progress: Progress) -> None:
    """Kubernetes's releases don't carry it."""
    place(tmp_path / "path", names=REQUIRED)
    with pytest.raises(SandboxError, match="apt-get install etcd-server"):
        find(progress)
