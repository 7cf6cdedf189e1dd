"""The way out to the API server: implements the ports of `deviceshare.loops.ports`, over aiohttp and raw JSON.

`kubernetes.aio` is used for what it does well, reading kubeconfig files and service account tokens. Its typed models,
its watch and its leader election are not used: they are ten times slower, lose unknown fields on a write, and have no
list and watch that survives a 410 or a hung connection.
"""
