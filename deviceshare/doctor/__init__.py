"""`deviceshare doctor`: a module for each thing that may be wrong in a cluster, each finding with its cure.

Each module looks at one thing: `examine` asks the API server, and pure functions beside it judge what it answered. What
the person who asks may not read is not tested, and said so; a check never fails because another one did.
"""
