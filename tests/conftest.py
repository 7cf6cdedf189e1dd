"""What holds for every test."""

import os
import signal

from hypothesis import settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("deviceshare", deadline=None)
settings.load_profile("deviceshare")

# Who runs tests in the background of a shell, which ignores Ctrl-C, or on a dumb terminal gets the same results. What
# tests start inherits both.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["TERM"] = "xterm"
