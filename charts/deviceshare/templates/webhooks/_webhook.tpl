{{/* What every webhook has in common: include "deviceshare.webhook" (list $ "/path"). */}}
{{- define "deviceshare.webhook" -}}
{{- $ := index . 0 -}}
clientConfig:
  service:
    namespace: {{ $.Release.Namespace }}
    name: deviceshare
    path: {{ index . 1 }}
sideEffects: None
timeoutSeconds: {{ $.Values.webhooks.timeoutSeconds }}
admissionReviewVersions: [v1]
{{- end }}

{{/* The excluded namespaces: the webhooks aren't called for their pods, and deviceshare ignores their annotations. */}}
{{- define "deviceshare.leftOut" -}}
{{ append .Values.webhooks.excludedNamespaces .Release.Namespace | uniq | sortAlpha | toJson }}
{{- end }}

{{/* Without the namespaces left out, deviceshare's pods could wait for themselves. */}}
{{- define "deviceshare.namespaceSelector" -}}
namespaceSelector:
  matchExpressions:
    # The API server sets this label from 1.21 on.
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: {{ include "deviceshare.leftOut" . | fromJsonArray | toYaml | nindent 8 }}
    {{- with .Values.webhooks.namespaceSelector }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "deviceshare.webhookMetadata" -}}
metadata:
  name: deviceshare
  labels: {{- include "deviceshare.labels" . | nindent 4 }}
  {{- if or .Values.certManager.enabled .Values.shares.nodeLabels }}
  annotations:
    {{- if .Values.certManager.enabled }}
    cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/deviceshare-webhook
    {{- end }}
    {{- with .Values.shares.nodeLabels }}
    # deviceshare's commands read here which nodes are shared.
    deviceshare.io/shared-node-labels: {{ join "," . | quote }}
    {{- end }}
  {{- end }}
{{- end }}
