{{/* Binds a role to deviceshare: include "deviceshare.binding" (list $ KIND NAME), or with a fourth, the binding's name. */}}
{{- define "deviceshare.binding" -}}
{{- $ := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $role := index . 2 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ if gt (len .) 3 }}{{ index . 3 }}{{ else }}{{ $role }}{{ end }}
  {{- if eq $kind "Role" }}
  namespace: {{ $.Release.Namespace }}
  {{- end }}
  {{- include "deviceshare.marks" (list $ (include "deviceshare.labels" $)) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $role }}
subjects:
  - kind: ServiceAccount
    name: {{ $.Values.serviceAccount.name }}
    namespace: {{ $.Release.Namespace }}
{{- end }}
