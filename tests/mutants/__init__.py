"""Whether tests notice when a rule of the claim protocol is taken out of the code: `tox run -e mutants`."""

import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutations.toml")


class Mutation(Struct, frozen=True, forbid_unknown_fields=True):
    """One exact replacement in one file, and the tests below tests/unit that must fail with it."""

    rule: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied(self, source: str) -> str:
        """The source without the rule. Raises ValueError where `old` doesn't stand in it exactly once."""
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.rule}: {self.file} has {self.old!r} {source.count(self.old)} times; renew {LIST.name}"
            )
        return source.replace(self.old, self.new)


def mutations() -> list[Mutation]:
    """All of them, as they stand in the file."""
    return msgspec.convert(tomllib.loads(LIST.read_text()), dict[str, list[Mutation]])["mutation"]
