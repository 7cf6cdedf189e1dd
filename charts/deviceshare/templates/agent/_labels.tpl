{{/* Not deviceshare's own name: the webhooks' Service must lead to no agent. */}}
{{- define "deviceshare.agent.selector" -}}
app.kubernetes.io/name: deviceshare-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deviceshare.agent.labels" -}}
{{ include "deviceshare.agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The user name under which agents write. */}}
{{- define "deviceshare.agent.identity" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ .Values.agent.serviceAccount.name }}
{{- end }}

{{/* include "deviceshare.placeholder.selector" (list $ PLACEHOLDER) */}}
{{- define "deviceshare.placeholder.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: deviceshare-placeholder
app.kubernetes.io/instance: {{ $.Release.Name }}
deviceshare.io/placeholder: {{ (index . 1).name }}
{{- end }}

{{- define "deviceshare.placeholder.labels" -}}
{{- $ := index . 0 -}}
{{ include "deviceshare.placeholder.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
{{- end }}
