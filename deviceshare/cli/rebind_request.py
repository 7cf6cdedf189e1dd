"""What requests of rebinds by commands have in common: their tokens, and how long an answer may take."""

import secrets
from typing import Final

import click

from deviceshare import timestamps
from deviceshare.domain import contract

ANSWER_SECONDS: Final = 30.0
"""A leader that died is replaced within this time."""


def new_token() -> str:
    """A unique request: the time in RFC 3339, and random digits for requests made in the same second."""
    return f"{timestamps.now()}-{secrets.token_hex(4)}"


def no_answer(seconds: float, outcome: str) -> click.ClickException:
    """The error where nobody answered; `outcome` is the command that shows the answer later."""
    return click.ClickException(
        f"deviceshare has not answered within {seconds:g} s. It will when it runs; see that with"
        f" kubectl get pods -A -l app.kubernetes.io/name={contract.NAME}, and the outcome with {outcome}"
    )
