"""A control plane that has deviceshare's admission registered, and no deviceshare: its tests start and stop that."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare_sandbox import Options, Sandbox, running


@contextmanager
def bare_cluster(directory: Path, options: Options, admission: str = WEBHOOKS) -> Iterator[Sandbox]:
    """Runs it in the directory for the length of the block."""
    bare = msgspec.structs.replace(options, deviceshare=False, admission=admission)
    with running(bare, directory) as started:
        applied = started.kubectl("apply", f"--filename={started.admission_manifest}")
        assert applied.returncode == 0, applied.stderr
        yield started
