"""Builds the images of the operator and the runtime, and brings them into a cluster or a registry.

Standard library only, so that it runs before anything is installed.
"""
