// Reads dashboards as Grafana's own types have them. A test of the chart's dashboards builds it.
module grpo.dev/cluster/dashboard-lint

go 1.26.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
