"""`python -m deviceshare`, the same as the console script."""

from deviceshare.cli.main import main

main(prog_name="deviceshare")
