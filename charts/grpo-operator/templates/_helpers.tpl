{{- define "grpo-operator.name" -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "grpo-operator.labels" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "grpo-operator.selector" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "grpo-operator.watchNamespace" -}}
{{- .Values.watchNamespace | default .Release.Namespace -}}
{{- end -}}

{{- define "grpo-operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
