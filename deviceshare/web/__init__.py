"""Inbound HTTP: what kube-scheduler, the API server, kubelets and people's monitoring ask of deviceshare."""
