"""The private source list, derived from however a machine writes its own."""

import pytest

from deviceshare_sandbox.debian import derive_sources, upstream_version
from deviceshare_sandbox.reports import SandboxError

MIRROR = "http://mirror.example/debian"


def deb822(**fields: str) -> str:
    """A stanza as in debian.sources."""
    return "\n".join(f"{key.replace('_', '-')}: {value}" for key, value in fields.items()) + "\n"


def parse(stanzas: str) -> list[dict[str, str]]:
    """The fields of each stanza."""
    lines = [
        [line.split(": ", 1) for line in stanza.splitlines()] for stanza in stanzas.strip().split("\n\n") if stanza
    ]
    return [{key: value for key, value in fields} for fields in lines]  # noqa: C416 a list of lists isn't pairs to mypy


def test_a_deb822_entry_gains_its_sources() -> None:
    """As Debian 12's container images are set up."""
    entry = deb822(Types="deb", URIs=MIRROR, Suites="bookworm bookworm-updates", Components="main", Signed_By="/k.gpg")
    assert parse(derive_sources([entry], "bookworm")) == [
        {
            "Types": "deb deb-src",
            "URIs": MIRROR,
            "Suites": "bookworm bookworm-updates",
            "Components": "main",
            "Signed-By": "/k.gpg",
        }
    ]


def test_a_one_line_entry_gains_its_sources() -> None:
    """As Debian's installer used to write it."""
    line = f"deb [arch=amd64 signed-by=/k.gpg] {MIRROR} bookworm main contrib  # the mirror"
    assert parse(derive_sources([line], "bookworm")) == [
        {
            "Types": "deb deb-src",
            "URIs": MIRROR,
            "Suites": "bookworm",
            "Components": "main contrib",
            "Signed-By": "/k.gpg",
        }
    ]


def test_a_source_entry_beside_its_binary_entry_is_not_repeated() -> None:
    """apt warns of duplicates."""
    lines = f"deb {MIRROR} bookworm main\ndeb-src {MIRROR} bookworm main\n"
    assert len(parse(derive_sources([lines], "bookworm"))) == 1


@pytest.mark.parametrize(
    "entry",
    [
        deb822(Types="deb", URIs=MIRROR, Suites="nodistro", Components="main"),
        deb822(Types="deb", URIs=MIRROR, Suites="bookworm", Components="stable"),
        deb822(Enabled="no", Types="deb", URIs=MIRROR, Suites="bookworm", Components="main"),
        f"deb {MIRROR} cloud-sdk-bookworm main",
        f"deb {MIRROR} bookworm-pgdg main",
        f"# deb {MIRROR} bookworm main",
        "nonsense",
    ],
)
def test_other_entries_are_left_out(entry: str) -> None:
    """A third party's archive that can't be reached must not stop the build."""
    assert derive_sources([entry], "bookworm") == ""


@pytest.mark.parametrize(
    ("debian", "upstream"), [("1.20.5+really1.20.2-1.1+deb12u1", "v1.20.2"), ("1.20.2-1", "v1.20.2")]
)
def test_the_upstream_release_is_read_from_debians_version(debian: str, upstream: str) -> None:
    """Debian's own number isn't what kube-apiserver must say it is."""
    assert upstream_version(debian) == upstream


def test_a_source_package_without_its_go_modules_is_refused() -> None:
    """Later Debians ship one that can't be built alone; minutes of building would end in a riddle."""
    with pytest.raises(SandboxError, match="lacks the Go modules"):
        upstream_version("1.32.3+ds-2")
