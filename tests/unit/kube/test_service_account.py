"""A pod's service account, as the kubelet mounts it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deviceshare.certificates import issuance
from deviceshare.kube import connection
from deviceshare.kube.connection import FRESH_SECONDS, NotConfigured, connect

SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """The volume."""
    day = timedelta(days=1)
    authority = issuance.new_authority("ca", now=datetime.now(UTC), lifetime=day, skew=timedelta())
    (tmp_path / "ca.crt").write_text(authority.certificate)
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
async def test_a_pod_reaches_the_service_as_its_service_account(mounted: Path, host: str, server: str) -> None:
    """By the address that the kubelet put into its environment, and by the cluster's CA alone."""
    account = connection.read_service_account(mounted, {**SERVICE, "KUBERNETES_SERVICE_HOST": host})
    assert account.server == server
    assert await account.authorization() == "Bearer first"
    assert len(account.tls.get_ca_certs()) == 1
    assert (account.tls.check_hostname, account.proxy) == (True, None)


async def test_a_token_that_the_kubelet_renewed_is_read_again(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a minute; while the file can't be read the last token goes on, which may be valid still."""
    now = 1000.0
    monkeypatch.setattr("deviceshare.kube.connection.time.monotonic", lambda: now)
    account = connection.read_service_account(mounted, SERVICE)
    (mounted / "token").write_text("")
    assert await account.authorization() == "Bearer first"
    now += FRESH_SECONDS + 1
    assert await account.authorization() == "Bearer first"
    (mounted / "token").write_text("second")
    now += FRESH_SECONDS + 1
    assert await account.authorization() == "Bearer second"


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_its_service_account_is_told_the_way_out(mounted: Path, missing: str) -> None:
    """As where automountServiceAccountToken is off."""
    (mounted / missing).unlink()
    with pytest.raises(NotConfigured, match=r"no service account of a pod: .*--kubeconfig"):
        connection.read_service_account(mounted, SERVICE)


async def test_outside_a_pod_a_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`deviceshare run` on a laptop says so rather than failing to connect."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NotConfigured, match="--kubeconfig"):
        async with connect():
            pass
