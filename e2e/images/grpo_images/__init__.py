"""The operator's and the runtime's image: from a Containerfile into a cluster.

Standard library only, so that it runs before anything is installed.
"""
