"""hatchling's hook: each wheel gets its version, and a bill of materials at `.dist-info/sboms/` (PEP 770).

https://peps.python.org/pep-0770/, https://hatch.pypa.io/latest/plugins/build-hook/custom/
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):  # type: ignore[misc,type-arg,unused-ignore]  # mypy may have no hatchling
    """Writes both before the wheel is built, and removes its own copies afterwards."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is hatchling's word for the kind of wheel: an editable one, of a checkout, gets neither."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # hatchling loads this file alone
        from release import build_bill  # noqa: PLC0415 - see above

        core = self.metadata.core
        constraints = (Path(self.root) / "constraints.txt").read_text()
        licence = core.license_expression or ""
        self._folder = tempfile.TemporaryDirectory()
        numbered = Path(self._folder.name) / "_version.py"
        numbered.write_text(f'__version__ = "{self.metadata.version}"\n')
        build_data["force_include"][str(numbered)] = "deviceshare/_version.py"
        file = Path(self._folder.name) / f"{build_bill.SUBJECT}.cdx.json"
        file.write_text(build_bill.of_wheel(self.metadata.version, licence, core.dependencies, constraints))
        build_data["sbom_files"].append(str(file))

    def finalize(self, version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
