"""Processes and their pods, by the names that kubelets and runtimes give to control groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.device_health.containers import ControlGroup, control_group_of

UID = "3f6c1a52-9d0e-4b8a-8c1d-2f7e6a5b4c3d"
DASHED = UID.replace("-", "_")
ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "path",
    [
        f"0::/kubepods/burstable/pod{UID}/{ID}",
        f"0::/kubepods/pod{UID}/{ID}",
        f"0::/kubepods.slice/kubepods-pod{DASHED}.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{DASHED}.slice/crio-{ID}.scope",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{DASHED}.slice/crio-{ID}.scope/container",
        f"0::/kubepods.slice/kubepods-pod{DASHED}.slice/docker-{ID}.scope",
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{DASHED}.slice:cri-containerd:{ID}",
        f"0::/docker/{'f' * 64}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{DASHED}.slice/cri-containerd-{ID}.scope",  # noqa: E501 it is one line in the file, too
        f"0::/docker/{'f' * 64}/kubepods/burstable/pod{UID}/{ID}",
        f"0::/../../kubepods-burstable-pod{DASHED}.slice/cri-containerd-{ID}.scope",
        f"0::/../../pod{UID}/{ID}",
        f"12:cpuset:/\n11:devices:/kubepods/besteffort/pod{UID}/{ID}\n1:name=systemd:/\n0::/",
        f"4:memory:/kubepods/pod{UID}\n3:pids:/kubepods/pod{UID}/{ID}\n",
    ],
)
def test_a_containers_process_is_found_in_every_naming(path: str) -> None:
    """Both drivers, both versions, nested clusters, and a reader in a namespace of its own."""
    assert control_group_of(path) == ControlGroup(UID, ID)


def test_a_pod_within_a_pod_is_the_outer_one() -> None:
    """Such as of a cluster in a container; who may create groups there doesn't become another pod by their names."""
    assert control_group_of(f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{'ab' * 16}/{'f' * 64}") == ControlGroup(UID, ID)
    assert control_group_of(f"0::/kubepods/pod{UID}/{ID}/x\r1::/kubepods/pod{'ab' * 16}/{'f' * 64}") == ControlGroup(
        UID, ID
    )


def test_a_pods_own_process_has_no_container() -> None:
    """Such as one that was moved there by hand."""
    assert control_group_of(f"0::/kubepods/besteffort/pod{UID}\n") == ControlGroup(UID)


def test_a_static_pod_is_named_by_its_hash() -> None:
    """The API server shows another UID, and the hash as an annotation."""
    assert control_group_of(f"0::/kubepods/burstable/pod{'ab' * 16}/{ID}") == ControlGroup("ab" * 16, ID)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "0::/",
        "0::/user.slice/user-1000.slice/session-2.scope",
        f"0::/system.slice/docker-{ID}.scope",
        "0::/podman/podman.slice",
        f"0::/machine.slice/libpod-{ID}.scope",
        f"0::/tripod{UID}/{ID}",
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods-pod{DASHED}.slice/cri-containerd-{ID}.scope",
        f"0::/../../../user.slice/user-7.slice/user@7.service/app.slice/x\r0::/kubepods/pod{UID}/{ID}",
    ],
)
def test_other_processes_have_no_pod(path: str) -> None:
    """Neither the node's own nor containers that the kubelet doesn't know, nor what users of the node call a pod."""
    assert control_group_of(path) is None


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    """Names of control groups are whatever somebody wrote."""
    control_group_of(text)
