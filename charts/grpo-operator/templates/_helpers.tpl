{{- define "grpo-operator.name" -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Two releases of the same name must not share cluster-wide objects. */}}
{{- define "grpo-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "grpo-operator.name" .) -}}
{{- end -}}

{{- define "grpo-operator.labels" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Of what Prometheus operator reads, with those by which a Prometheus selects it. */}}
{{- define "grpo-operator.monitoringLabels" -}}
{{- include "grpo-operator.labels" . }}
{{- with .Values.monitoring.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "grpo-operator.selector" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The namespaces that are watched, as a JSON list; unused with watch.allNamespaces. */}}
{{- define "grpo-operator.watched" -}}
{{- if and .Values.watch.allNamespaces .Values.watch.namespaces -}}
{{- fail "watch.namespaces names some of what watch.allNamespaces=true has all of: leave one of them out" -}}
{{- end -}}
{{- if and .Values.watch.namespaceSelector (not .Values.watch.allNamespaces) -}}
{{- fail "watch.namespaceSelector is for watch.allNamespaces=true: name the namespaces in watch.namespaces instead" -}}
{{- end -}}
{{- .Values.watch.namespaces | default (list .Release.Namespace) | uniq | toJson -}}
{{- end -}}

{{- define "grpo-operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Who may read the reports of jobs, as a JSON list: the operator itself, those of the values, and with monitoring
Prometheus. */}}
{{- define "grpo-operator.reportsFrom" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $pods := dict "matchLabels" (include "grpo-operator.selector" . | fromYaml) -}}
{{- $operator := dict "namespaceSelector" $namespace "podSelector" $pods -}}
{{- $readers := concat (list $operator) (.Values.networkPolicies.reportsFrom | default list) -}}
{{- if .Values.monitoring.enabled -}}
{{- $readers = append $readers (include "grpo-operator.prometheus" . | fromJson) -}}
{{- end -}}
{{- $readers | uniq | toJson -}}
{{- end -}}

{{/* The pods of Prometheus, as a NetworkPolicyPeer in JSON; without a value those of kube-prometheus-stack. */}}
{{- define "grpo-operator.prometheus" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" "monitoring") -}}
{{- $pods := dict "matchLabels" (dict "app.kubernetes.io/name" "prometheus") -}}
{{- .Values.monitoring.prometheus | default (dict "namespaceSelector" $namespace "podSelector" $pods) | toJson -}}
{{- end -}}

{{/* Exactly the verbs the operator uses on jobs and their children. Secrets are created and never read. */}}
{{- define "grpo-operator.rules" -}}
- apiGroups: [grpo.dev]
  resources: [grpojobs]
  verbs: [get, list, watch{{ if .Values.deleteExpiredJobs }}, delete{{ end }}]
- apiGroups: [grpo.dev]
  resources: [grpojobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch{{ if .Values.networkPolicies.jobs }}, create, patch{{ end }}]
# What the operator reports about a job, and what the cluster reports about its pods: failed mounts, bad images.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- if .Values.watch.namespaceSelector }}
# Which namespaces are left out by their labels.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end }}
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
- apiGroups: [visibility.kueue.x-k8s.io]
  resources: [localqueues/pendingworkloads]
  verbs: [get]
{{- end }}
{{- range include "grpo-operator.podGroups" . | fromJsonArray }}
- apiGroups: [{{ . }}]
  resources: [podgroups]
  verbs: [get, list, create, delete{{ if eq . "scheduling.x-k8s.io" }}, patch{{ end }}]
{{- end }}
{{- end -}}

{{/* The API groups of the PodGroups that the operator makes, as a JSON list. */}}
{{- define "grpo-operator.podGroups" -}}
{{- $groups := dict "Coscheduling" "scheduling.x-k8s.io" "Volcano" "scheduling.volcano.sh" "KAI" "scheduling.run.ai" "Native" "scheduling.k8s.io" -}}
{{- $found := list -}}
{{- range .Values.gangs -}}
{{- $found = append $found (get $groups .) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}
