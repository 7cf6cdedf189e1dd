"""The checks of `deviceshare doctor`, a module for each family of them; their findings name the next command.

`examine…` asks the API server, and pure functions beside it judge the answers. What the person who asks may not read
is reported as not tested; a check never fails because another one did.
"""
