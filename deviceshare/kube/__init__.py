"""The way out to the API server: implements the ports of `deviceshare.loops.ports`, in raw JSON.

Of the Kubernetes client only the reader of kubeconfig files is used (decision 11). Its typed models, its watch and its
leader election are not: they are ten times slower, lose unknown fields on a write, and have no list and watch that
survives a 410 or a hung connection.
"""
