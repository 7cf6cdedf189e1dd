"""What holds for every test."""

from hypothesis import settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("deviceshare", deadline=None)
settings.load_profile("deviceshare")
