"""What the kubelet says on its own node, over gRPC on a Unix socket. Only the agent asks.

Source: Kubernetes enhancement 606 (pod resources), served as `v1` since Kubernetes 1.20.
"""
