"""What holds for every test."""

import os
import signal

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("deviceshare", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("deviceshare")

# Who runs tests in the background of a shell, which ignores Ctrl-C, or on any terminal gets the same results. What
# tests start inherits both.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ |= {"TERM": "xterm", "COLUMNS": "80"}
for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
