"""A GRPOJob without Kubernetes: the processes of its pods, on this machine."""
