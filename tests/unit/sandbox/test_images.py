"""Image archives as `docker save` writes them."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from deviceshare_sandbox import images


def test_an_archive_names_its_image_and_holds_its_files(tmp_path: Path) -> None:
    """A runtime checks the layer against the digest in the configuration."""
    program, archive = tmp_path / "program", tmp_path / "image.tar"
    program.write_bytes(b"\x7fELF")
    files, links = {"bin/program": program}, {"bin/other": "program"}
    images.write(archive, "localhost/one:1", files, links=links, command=["program"], environment=["A=b"])
    with tarfile.open(archive) as outer:
        (manifest,) = json.loads(content(outer, "manifest.json"))
        config = json.loads(content(outer, manifest["Config"]))
        (layer,) = (content(outer, name) for name in manifest["Layers"])
    assert manifest["RepoTags"] == ["localhost/one:1"]
    assert config["config"]["Cmd"] == ["program"]
    assert "A=b" in config["config"]["Env"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as inner:
        assert content(inner, "bin/program") == b"\x7fELF"
        assert inner.getmember("bin/program").mode & 0o111
        assert inner.getmember("bin/other").linkname == "program"


def content(archive: tarfile.TarFile, name: str) -> bytes:
    """A member's."""
    file = archive.extractfile(name)
    assert file is not None
    return file.read()
