"""Downloads of the official release, from a site on loopback that may be broken."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from deviceshare_sandbox import release
from deviceshare_sandbox.release import ETCD_VERSION, download, download_etcd
from deviceshare_sandbox.reports import Progress, SandboxError

QUIET = Progress(Console(file=io.StringIO()))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """Path → content of a web site that both addresses point to; the cache is an empty directory."""
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = pages.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("DEVICESHARE_RELEASE_URL", address)
        monkeypatch.setenv("DEVICESHARE_ETCD_RELEASE_URL", address)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(release, "_architecture", lambda: "amd64")
        yield pages
        server.shutdown()
        thread.join()


def publish(site: dict[str, bytes], path: str, content: bytes) -> None:
    """A file with its checksum beside it."""
    site[path] = content
    site[f"{path}.sha256"] = hashlib.sha256(content).hexdigest().encode()


def test_a_release_is_downloaded_once_and_executable(site: dict[str, bytes], tmp_path: Path) -> None:
    """The second time it is in the cache, whatever became of the site."""
    publish(site, "/v1.30.1/bin/linux/amd64/kubectl", b"#!/bin/sh\n")
    directory = download(["kubectl"], "v1.30.1", QUIET)
    assert directory == tmp_path / "deviceshare/kubernetes/v1.30.1/bin"
    assert (directory / "kubectl").stat().st_mode & 0o111
    site.clear()
    assert download(["kubectl"], "v1.30.1", QUIET) == directory


def test_only_what_the_cache_lacks_is_downloaded(site: dict[str, bytes], tmp_path: Path) -> None:
    """A real node's kubelet joins a release that is there already."""
    publish(site, "/v1.30.1/bin/linux/amd64/kubectl", b"old")
    download(["kubectl"], "v1.30.1", QUIET)
    site.clear()
    publish(site, "/v1.30.1/bin/linux/amd64/kubelet", b"new")
    directory = download(["kubectl", "kubelet"], "v1.30.1", QUIET)
    assert (directory / "kubectl").read_bytes() == b"old"
    assert (directory / "kubelet").read_bytes() == b"new"


def test_a_file_that_differs_from_its_checksum_is_thrown_away(site: dict[str, bytes], tmp_path: Path) -> None:
    """Nothing of it may reach the cache."""
    publish(site, "/v1.30.1/bin/linux/amd64/kubectl", b"good")
    site["/v1.30.1/bin/linux/amd64/kubectl"] = b"evil"
    with pytest.raises(SandboxError, match="SHA-256"):
        download(["kubectl"], "v1.30.1", QUIET)
    assert [path.name for path in (tmp_path / "deviceshare").iterdir()] == ["lock"]


def test_a_site_that_lacks_the_release_is_named(site: dict[str, bytes]) -> None:
    """The person may have mistyped the version or the address."""
    with pytest.raises(SandboxError, match=r"/v9\.9\.9/bin/linux/amd64/kubectl\.sha256 can't be read"):
        download(["kubectl"], "v9.9.9", QUIET)


def test_a_site_that_is_not_there_is_an_error_and_not_a_wait(
    site: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network the next way to get binaries must have its turn."""
    monkeypatch.setenv("DEVICESHARE_RELEASE_URL", "http://127.0.0.1:1")
    with pytest.raises(SandboxError, match="can't be read"):
        download(["kubectl"], "", QUIET)


def test_etcd_is_taken_out_of_its_archive(site: dict[str, bytes], tmp_path: Path) -> None:
    """etcd publishes archives, with one list of checksums."""
    name = f"etcd-{ETCD_VERSION}-linux-amd64"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo(f"{name}/etcd")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"etcd"))
    site[f"/{ETCD_VERSION}/{name}.tar.gz"] = packed.getvalue()
    site[f"/{ETCD_VERSION}/SHA256SUMS"] = f"{hashlib.sha256(packed.getvalue()).hexdigest()}  {name}.tar.gz\n".encode()
    etcd = download_etcd(QUIET)
    assert etcd.read_bytes() == b"etcd"
    assert etcd == tmp_path / "deviceshare/etcd/bin/etcd"
