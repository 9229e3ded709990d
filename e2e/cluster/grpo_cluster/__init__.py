"""A Kubernetes cluster on one Linux machine, without Docker; standard library only, Python 3.11.

Read in this order: `settings` (addresses and folders), `lifecycle` (up and down),
`control_plane` and `node` (what runs), `network` (how the parts reach each other), `images` (what pods run).
"""
