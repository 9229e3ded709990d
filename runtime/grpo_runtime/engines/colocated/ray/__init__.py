"""`colocated.executor: Ray`: engines as actors of a Ray cluster of the job's own trainer pods.

Each pod has one more process, `pod_process`, which starts the pod's Ray node and is the only one of ours that
talks to Ray. The ranks bring all of it up together (`cluster`), and ask it for their engines (`rank_end`). An
actor (`actor`) only hosts the process: what rank and engine say to each other goes through a socket between
the two, as with a child of the rank. `layout` decides how nodes are started and where actors go, and
`node_folder` has a node's sockets, logs and token. Nothing else of ours imports ray.
"""
