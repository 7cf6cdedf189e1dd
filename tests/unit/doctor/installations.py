"""Installations of deviceshare as the doctor sees them."""

import msgspec

from deviceshare.doctor.kinds import Installation, Rollout


def deployed(*flags: str) -> Installation:
    """One whose Deployment has these flags."""
    containers = [{"name": "deviceshare", "args": ["run", *flags]}]
    found = msgspec.convert({"spec": {"template": {"spec": {"containers": containers}}}}, Rollout)
    return Installation("deviceshare-system", found)
