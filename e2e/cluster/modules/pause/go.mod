// The process that holds a pod's namespaces open.
module grpo.dev/cluster/pause

go 1.24.0
