"""What an answer leaves out because the person who asked may not read it, and what that means for the answer."""

from msgspec import Struct


class Unseen(Struct, frozen=True, rename="camel"):
    """One kind of object that wasn't read, or not all of them."""

    what: str
    """Its plural, such as `nodes`."""
    text: str
    """For people: what could not be read, and what isn't known for that."""
