"""A person's kubeconfig: what stands in files is read by ourselves, as the Kubernetes client reads it."""

import base64
import json
import ssl
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deviceshare.kube.connection import Access, NotConfigured, ask_client, read_kubeconfig
from tests.unit.kube.test_connection import write_certificates

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def write(path: Path, cluster: Json, user: Json, *, context: str = "x", current: str | None = None) -> str:
    config = {
        "clusters": [{"name": f"cluster-{context}", "cluster": cluster}],
        "users": [{"name": f"user-{context}", "user": user}],
        "contexts": [{"name": context, "context": {"cluster": f"cluster-{context}", "user": f"user-{context}"}}],
        "current-context": context if current is None else current,
    }
    path.write_text(json.dumps(config))
    return str(path)


def encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


async def told(access: Access) -> Json:
    """What can be compared of two."""
    return {
        "server": access.server,
        "authorization": await access.authorization(),
        "authorities": access.tls.get_ca_certs(),
        "checked": (access.tls.check_hostname, access.tls.verify_mode),
        "proxy": access.proxy,
        "name": access.server_name,
    }


@pytest.mark.parametrize(
    "user", [{"token": "abc"}, {"tokenFile": "token"}, {"client": "files"}, {"client": "data"}, {}]
)
@pytest.mark.parametrize(
    "cluster",
    [
        {"certificate-authority": "ca.crt"},
        {"certificate-authority-data": "data", "tls-server-name": "kubernetes", "extensions": [{"name": "minikube"}]},
        {"insecure-skip-tls-verify": True, "proxy-url": "http://proxy:3128"},
    ],
)
async def test_credentials_in_files_are_read_as_the_kubernetes_client_reads_them(
    tmp_path: Path, cluster: Json, user: Json
) -> None:
    """Relative paths are those of the file's folder; data counts before files."""
    authority = write_certificates(tmp_path)
    (tmp_path / "token").write_text("from-a-file")
    cluster = {"server": "https://10.0.0.1:6443/", **cluster}
    if "certificate-authority-data" in cluster:
        cluster["certificate-authority-data"] = encoded(authority)
    if user.get("client") == "files":
        user = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    if user.get("client") == "data":
        user = {
            f"client-{key}-data": encoded(tmp_path / f"tls.{end}")
            for key, end in (("certificate", "crt"), ("key", "key"))
        }
    files = write(tmp_path / "config", cluster, user)

    assert await told(await read_kubeconfig(files, None)) == await told(await ask_client(files, None))


async def test_a_clients_key_is_nobody_elses_to_read_and_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL takes it by a file's name only."""
    authority, seen = write_certificates(tmp_path), []
    load = ssl.SSLContext.load_cert_chain

    def look(self: ssl.SSLContext, file: str) -> None:
        seen.append((Path(file), stat.S_IMODE(Path(file).stat().st_mode)))
        load(self, file)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    user = {"client-certificate": "tls.crt", "client-key-data": encoded(tmp_path / "tls.key")}
    await read_kubeconfig(
        write(tmp_path / "config", {"server": "https://a", "certificate-authority": str(authority)}, user), None
    )

    assert [(file.exists(), mode) for file, mode in seen] == [(False, 0o600)]


async def test_what_has_to_be_asked_for_is_the_kubernetes_clients(tmp_path: Path) -> None:
    """An exec plugin's token."""
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-a-plugin"},
    }
    plugin = {
        "apiVersion": credential["apiVersion"],
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(credential)!r})"],
        "interactiveMode": "Never",
    }
    files = write(tmp_path / "config", {"server": "http://127.0.0.1:1"}, {"exec": plugin})
    assert await (await read_kubeconfig(files, None)).authorization() == "Bearer from-a-plugin"


async def test_of_two_files_the_first_with_a_current_context_counts(tmp_path: Path) -> None:
    """As with kubectl, also where the Kubernetes client reads, for which the last counts."""
    first = write(tmp_path / "a", {"server": "http://a"}, {"token": "a"}, context="a")
    second = write(tmp_path / "b", {"server": "http://b"}, {"username": "b", "password": "b"}, context="b")
    for files, server in ((f"{first}:{second}", "http://a"), (f"{second}:{first}", "http://b")):
        assert (await read_kubeconfig(files, None)).server == server
    assert (await read_kubeconfig(f"{first}:{second}", "b")).server == "http://b"


@pytest.mark.parametrize(
    ("cluster", "user", "current", "said"),
    [
        ({"server": "https://a", "certificate-authority": "gone.crt"}, {}, None, "gone.crt"),
        ({"server": "https://a", "certificate-authority-data": "bm9uZQ=="}, {}, None, ""),
        ({"server": "https://a"}, {"client-certificate-data": "!"}, None, ""),
        ({"server": "https://a"}, {"tokenFile": "gone"}, None, "gone"),
        ({"server": "https://a"}, {}, "other", "other"),
    ],
)
async def test_a_file_that_cannot_be_used_names_itself_and_the_way_out(
    tmp_path: Path, cluster: Json, user: Json, current: str | None, said: str
) -> None:
    files = write(tmp_path / "config", cluster, user, current=current)
    with pytest.raises(
        NotConfigured, match=f"kubeconfig {files}: .*{said}.*; name a kubeconfig file with --kubeconfig"
    ):
        await read_kubeconfig(files, None)


def test_a_file_with_a_token_needs_no_kubernetes_client(tmp_path: Path) -> None:
    """It takes a third of a second to import."""
    files = write(tmp_path / "config", {"server": "http://127.0.0.1:1"}, {"token": "a"})
    program = (
        "import asyncio, sys; from deviceshare.kube.connection import read_kubeconfig; "
        f"asyncio.run(read_kubeconfig({files!r}, None)); print('kubernetes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == "False"
