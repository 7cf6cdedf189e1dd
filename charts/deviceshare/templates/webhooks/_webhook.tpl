{{/* What every webhook has in common: include "deviceshare.webhook" (list $ "/path"). */}}
{{- define "deviceshare.webhook" -}}
{{- $ := index . 0 -}}
clientConfig:
  service:
    namespace: {{ $.Release.Namespace }}
    name: {{ include "deviceshare.fullname" $ }}
    path: {{ index . 1 }}
    {{- if ne (int $.Values.webhooks.servicePort) 443 }}
    port: {{ $.Values.webhooks.servicePort }}
    {{- end }}
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
  {{- $annotations := include "deviceshare.sharedNodeLabels" . | fromYaml }}
  {{- /* AKS would else write selectors of its own into the webhooks, which then conflict with every upgrade. */}}
  {{- $_ := set $annotations "admissions.enforcer/disabled" "true" }}
  {{- if .Values.certManager.enabled }}
  {{- $_ := set $annotations "cert-manager.io/inject-ca-from" (printf "%s/%s-webhook" .Release.Namespace (include "deviceshare.fullname" .)) }}
  {{- end }}
  {{- include "deviceshare.marks" (list . (include "deviceshare.labels" .) dict $annotations) | nindent 2 }}
{{- end }}

{{/* The annotation, as YAML, by which deviceshare's commands know which nodes are shared. */}}
{{- define "deviceshare.sharedNodeLabels" -}}
{{- with .Values.shares.nodeLabels }}
deviceshare.io/shared-node-labels: {{ join "," . | quote }}
{{- end }}
{{- end }}
