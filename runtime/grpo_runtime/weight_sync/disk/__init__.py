"""Weights by way of files: the trainer writes each version once, to a volume or a bucket, and engines read it
there, also those that join later and those of another cluster.

`layout` and `version_manifest` say what a version is, `store` is where versions are kept, `publisher` writes
them, and `connection` and `receiver` are the two ends of the backend.
"""
