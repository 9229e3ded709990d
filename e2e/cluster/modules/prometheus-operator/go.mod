// The sources of Prometheus operator, whose CRDs a test gives to a real API server. Nothing of it is built.
module grpo.dev/cluster/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
