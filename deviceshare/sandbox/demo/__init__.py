"""`deviceshare sandbox demo`: a story on a real control plane, each sentence of it checked."""
