"""A whole-system simulator: everything at once, in virtual time. Its checker shares no code with the product.

What runs is what production runs: Binder, Feed, Fleet and Controller of several processes, each with mirrors that lag
and requests that get lost or take effect late, over one API server in memory (api_server.py). Machines, their kubelets
and a kube-scheduler (cluster.py), and people (people.py) do what they like meanwhile. After every write, and once
things came to rest, the checker (checker.py) reads raw JSON and physical cards.

`python -m tests.simulator --histories 2000 --seed 7` runs them by hand, with fresh seeds where none is given.
"""
