"""`deviceshare sandbox demo`: groups, pods and refusals on a real control plane, each sentence of it checked."""
