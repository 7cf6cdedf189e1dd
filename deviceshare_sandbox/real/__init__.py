"""The real node: containerd, kubelet and kube-proxy, and the images that they run."""
