"""What a release has, made from a checkout: `python -m release`, or `tox run -e release`."""
