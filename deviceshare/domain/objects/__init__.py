"""API objects as deviceshare reads them, decoded to values, and the formats of their fields.

Their Structs are `gc=False`: values that never change form no cycles, and a mirror of 10,000 pods has 180,000 of them,
through which Python's garbage collector would look while webhooks wait.
https://jcristharif.com/msgspec/structs.html#disabling-garbage-collection-advanced
"""
