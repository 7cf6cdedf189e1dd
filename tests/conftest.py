"""What holds for every test."""

import os
import signal

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the code. What is drawn is the same each time,
# so that a change is judged by what it changes. FRESH_DRAWS=1 draws anew, for the long run: a failure prints the
# example to commit as an `@example`.
FRESH = bool(os.environ.get("FRESH_DRAWS"))
settings.register_profile(
    "deviceshare", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not FRESH, print_blob=FRESH
)
settings.load_profile("deviceshare")

# Who runs tests in the background of a shell, which ignores Ctrl-C, or on any terminal gets the same results. What
# tests start inherits both.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ |= {"TERM": "xterm", "COLUMNS": "80"}
for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
