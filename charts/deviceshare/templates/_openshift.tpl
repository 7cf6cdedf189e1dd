{{/* Not empty on OpenShift, which gives pods their UIDs and admits them by SecurityContextConstraints. */}}
{{- define "deviceshare.openshift" -}}
{{- $chosen := toString .Values.openshift -}}
{{- if or (eq $chosen "true") (and (eq $chosen "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}yes{{ end -}}
{{- end }}

{{/* Lets a ServiceAccount use a SecurityContextConstraints: include "deviceshare.useOf" (list $ ROLE SCC ACCOUNT LABELS). */}}
{{- define "deviceshare.useOf" -}}
{{- $ := index . 0 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  {{- include "deviceshare.marks" (list $ (index . 4)) | nindent 2 }}
rules:
  # On OpenShift: be admitted by these SecurityContextConstraints.
  - apiGroups: [security.openshift.io]
    resources: [securitycontextconstraints]
    resourceNames: [{{ index . 2 }}]
    verbs: [use]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  {{- include "deviceshare.marks" (list $ (index . 4)) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ index . 1 }}
subjects:
  - kind: ServiceAccount
    name: {{ index . 3 }}
    namespace: {{ $.Release.Namespace }}
{{- end }}
