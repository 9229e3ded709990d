"""Weights by way of files: the trainer writes each version once, to a volume or a bucket, and engines read it
there, also those that join later and those of another cluster.

`version` says what a version is, `store` is where versions are kept, `publisher` writes them, and `backend`
has the two sides of the backend and the store that a run names.
"""
