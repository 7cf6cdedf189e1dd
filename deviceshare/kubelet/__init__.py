"""The kubelet's pod-resources API, over gRPC on a Unix socket of its node. Only the agent calls it.

Source: Kubernetes enhancement 606 (pod resources), served as `v1` since Kubernetes 1.20.
"""
