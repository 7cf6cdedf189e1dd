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

{{/* How containers reach the agent of their node, `node` or `service`; empty where they don't. Refuses what can't work together. */}}
{{- define "deviceshare.agent.pods" -}}
{{- if and .Values.agent.enabled .Values.agent.pods.enabled -}}
{{- if eq .Values.agent.pods.through "service" -}}
{{- if not (include "deviceshare.since" (list . "1.22")) -}}
{{- fail "agent.pods.through=service takes Kubernetes 1.22 or later, where a Service can lead to the pods of one node only: set it to node, or agent.pods.enabled=false" -}}
{{- end -}}
{{- else if and .Values.networkPolicy.enabled .Values.agent.allowFrom -}}
{{- fail "agent.allowFrom needs agents in the pods' network, since no NetworkPolicy applies to pods in the nodes': set agent.pods.through=service (Kubernetes 1.22 or later), or agent.pods.enabled=false, or leave agent.allowFrom empty" -}}
{{- end -}}
{{ .Values.agent.pods.through }}
{{- end -}}
{{- end }}

{{/* The template of the URL that containers are told; empty where agents don't answer them. */}}
{{- define "deviceshare.agent.url" -}}
{{- with include "deviceshare.agent.pods" . -}}
{{- if $.Values.agent.pods.url -}}
{{ $.Values.agent.pods.url }}
{{- else if eq . "service" -}}
http://{{ include "deviceshare.fullname" $ }}-agent.{{ $.Release.Namespace }}.svc:{{ $.Values.agent.pods.port }}
{{- else -}}
http://{host}:{{ $.Values.agent.pods.port }}
{{- end -}}
{{- end -}}
{{- end }}
