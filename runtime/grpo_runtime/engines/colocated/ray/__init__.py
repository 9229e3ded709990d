"""`colocated.executor: Ray`: engines as actors of a Ray cluster of the job's own trainer pods.

Each pod has one more process, `pod_process`, which starts the pod's Ray node with `node_settings` in a
`node_folder`, and is the only one of ours that talks to Ray. The first rank of the pod starts it (`ray_pod`),
and the ranks ask it for their engines (`rank_end`). An actor (`actor`) only hosts the process: what rank and
engine say to each other goes through a socket between the two, as with a child of the rank. `placement`
decides where actors go, `token` who may talk to Ray, and `cluster` is how the ranks bring all of that up
together. Nothing else of ours imports ray.
"""
