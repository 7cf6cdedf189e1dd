{{/* `policies` or `webhooks`: who injects and validates pods. */}}
{{- define "deviceshare.admission" -}}
{{ .Values.admission }}
{{- end }}
