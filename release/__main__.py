"""Makes a release: `python -m release [FOLDER]`, dist/ by default.

Everything is built in an empty folder. It needs the packages of the extra `release`, and pip's packages in reach:
wheels for all platforms are downloaded, some hundreds of MB, into a folder that is removed again. The image besides
needs root on a Debian, and its mirror.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click
from packaging.version import Version

from charts import generate
from release import (
    archives,
    bill_of_materials,
    chart_package,
    checksums,
    hashed_requirements,
    image,
    krew_manifest,
    single_file,
    version,
    wheels,
)
from release.closure import closure

DIGESTS = "image-digests.txt"
"""`DIGEST  FILE`, a line for each image: what cosign signs."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=wheels.ROOT / "dist")
@click.option("--tag", help="Refuse to make another version than this tag's, as in v0.1.0.")
@click.option("--url", default="", help="Folder that the files will be downloaded from, for the manifest of krew.")
@click.option("--image/--no-image", "images", default=True, help="Build the image; as root, on a Debian.  [image]")
@click.option("--cluster-only", is_flag=True, help="Only what goes into a cluster: image, chart, install.yaml.")
def main(folder: Path, tag: str | None, url: str, *, images: bool, cluster_only: bool) -> None:
    """Makes all files of a release in FOLDER, which must be empty or absent.

    \b
    Examples:
      python -m release --cluster-only           image, chart and install.yaml: minutes
      python -m release --tag v0.1.0 --no-image  all else, by anybody
    """
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(archives.epoch()))  # the version of changed files has a date
    number = _version(tag)
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} isn't empty; remove what is in it, or name another folder")
    if images and os.geteuid() != 0:
        raise click.ClickException("the image is built by root: run this as root, or leave it out with --no-image")
    folder.mkdir(parents=True, exist_ok=True)
    if not cluster_only:
        # A name that resolves nowhere (RFC 2606), so that nobody downloads from a stranger.
        make(folder, number, url or f"https://deviceshare.invalid/v{number}")
    small(folder, number)
    if images:
        build_images(folder, number)
    checksums.write(folder)
    for file in sorted(folder.iterdir()):
        click.echo(f"{file.stat().st_size:>12,}  {file}")


def _version(tag: str | None) -> str:
    """deviceshare's version, which must be the tag's."""
    number = version.version()
    if number == version.UNKNOWN:
        raise click.ClickException("git can't say here which commit this is: run this in a clone, as its owner or root")
    if tag is not None and Version(tag.removeprefix("v")) != Version(number):
        raise click.ClickException(f"the tag is {tag}, but git calls what is here {number}: check it out, unchanged")
    return number


def make(folder: Path, number: str, url: str) -> None:
    """Writes what is installed on people's machines, and the image's requirements."""
    wheel = next(path for path in wheels.build(folder) if path.suffix == ".whl")
    (folder / "deviceshare.cdx.json").write_text(bill_of_materials.bill("deviceshare", number))
    with tempfile.TemporaryDirectory() as scratch:
        _with_dependencies(folder, wheel, number, Path(scratch))
    archive = krew_manifest.write_archive(folder, folder / single_file.NAME, wheels.ROOT / "LICENSE")
    (folder / krew_manifest.NAME).write_text(krew_manifest.manifest(version.semantic(number), archive, url))


def small(folder: Path, number: str) -> Path:
    """Writes what needs no download: install.yaml, and the chart's package, which is returned."""
    with chart_package.numbered(number) as chart:
        (folder / "install.yaml").write_text(generate.install(chart))
        return chart_package.write(folder, chart)


def build_images(folder: Path, number: str) -> list[image.Image]:
    """Writes an OCI archive and a bill of materials for each machine whose programs run here, and the digests."""
    built = []
    for machine in image.MACHINES:
        if image.emulated(machine):
            built.append(image.build(folder, number, machine, fresh=True))
        else:
            _say(f"no image for {machine}: its programs don't run here; on Debian, install qemu-user-static")
    (folder / DIGESTS).write_text("".join(f"{each.digest}  {each.archive.name}\n" for each in built))
    return built


def _with_dependencies(folder: Path, wheel: Path, number: str, scratch: Path) -> None:
    needed, building = closure("deviceshare"), closure("hatchling", "hatch-vcs")
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
    single_file.write(folder / single_file.NAME, trees, number)


def _say(what: str) -> None:
    click.echo(what, err=True)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
