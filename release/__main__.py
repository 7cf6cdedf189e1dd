"""Makes a release: `python -m release [FOLDER]`, dist/ by default.

Everything is built in an empty folder. It needs the packages of the extra `release`, and pip's packages in reach:
wheels for all platforms are downloaded, some hundreds of MB, into a folder that is removed again.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click
from packaging.version import Version

import deviceshare
from charts import generate
from release import bill_of_materials, chart_package, checksums, hashed_requirements, krew_manifest, single_file, wheels
from release.closure import closure


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=wheels.ROOT / "dist")
@click.option("--tag", help="Refuse to make another version than this tag's, as in v0.1.0.")
@click.option("--url", default="", help="Folder that the files will be downloaded from, for the manifest of krew.")
def main(folder: Path, tag: str | None, url: str) -> None:
    """Makes all files of a release in FOLDER, which must be empty or absent."""
    version = _version(tag)
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} isn't empty; remove what is in it, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # A name that resolves nowhere (RFC 2606), so that nobody downloads from a stranger.
    make(folder, version, url or f"https://deviceshare.invalid/v{version}")
    for file in sorted(folder.iterdir()):
        click.echo(f"{file.stat().st_size:>12,}  {file}")


def _version(tag: str | None) -> str:
    """deviceshare's version; chart and tag must have the same."""
    version = deviceshare.__version__
    said = chart_package.metadata()
    for where, other in (("version in Chart.yaml", said["version"]), ("appVersion in Chart.yaml", said["appVersion"])):
        if other != version:
            raise click.ClickException(f"{where} is {other}, but deviceshare/__init__.py has {version}")
    if tag is not None and Version(tag.removeprefix("v")) != Version(version):
        raise click.ClickException(f"the tag is {tag}, but deviceshare/__init__.py has {version}: change one of them")
    return version


def make(folder: Path, version: str, url: str) -> None:
    """Writes all files of a release, and their checksums last."""
    wheel = next(path for path in wheels.build(folder) if path.suffix == ".whl")
    small(folder)
    with tempfile.TemporaryDirectory() as scratch:
        _with_dependencies(folder, wheel, version, Path(scratch))
    archive = krew_manifest.write_archive(folder, folder / single_file.NAME, wheels.ROOT / "LICENSE")
    (folder / "deviceshare-krew.yaml").write_text(krew_manifest.manifest(version, archive, url))
    checksums.write(folder)


def small(folder: Path) -> None:
    """Writes what needs no download: the chart's package, the manifests, the bill of materials."""
    chart_package.write(folder)
    (folder / "install.yaml").write_text(generate.install())
    (folder / "deviceshare.cdx.json").write_text(bill_of_materials.bill("deviceshare"))


def _with_dependencies(folder: Path, wheel: Path, version: str, scratch: Path) -> None:
    needed, building = closure("deviceshare"), closure("hatchling")
    needed = [each for each in needed if each.name != "deviceshare"]
    linux, every = scratch / "linux", scratch / "every"
    for target in (*wheels.LINUX, *wheels.NEWER_LINUX):
        _say(f"fetching the image's wheels: {target.key}")
        wheels.fetch(linux, wheels.pins([*needed, *building]), target)
    for name, parts in (("requirements.txt", needed), ("build-requirements.txt", building)):
        (folder / f"image-{name}").write_text(hashed_requirements.requirements(parts, linux.glob("*.whl")))
    shutil.copytree(linux, every)
    pins = wheels.pins(single_file.parts(needed))
    trees = {}
    for target in wheels.TARGETS:
        _say(f"unpacking the single-file CLI: {target.key}")
        if target not in wheels.LINUX:
            wheels.fetch(every, pins, target)
        trees[target.key] = scratch / "trees" / target.key
        wheels.unpack(every, [*pins, str(wheel)], target, trees[target.key])
    single_file.write(folder / single_file.NAME, trees, version)


def _say(what: str) -> None:
    click.echo(what, err=True)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
