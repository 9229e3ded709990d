"""Where the ranks of a pod find the process that talks to Ray."""

ENGINES_SOCKET = "engines"
"""A Unix socket in the folder of the pod's node."""
