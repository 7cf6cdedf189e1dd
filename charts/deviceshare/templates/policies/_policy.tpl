{{/* Variables of a policy, from files: include "deviceshare.policy.variables" (list $ "pod" "tables/devices"). */}}
{{- define "deviceshare.policy.variables" -}}
{{- $ := index . 0 -}}
{{- range rest . }}
{{ $.Files.Get (printf "files/policies/%s.yaml" .) | trimSuffix "\n" }}
{{- end }}
{{- end }}

{{/* What a pod has to be for deviceshare: the settings, the tables and what follows from them. */}}
{{- define "deviceshare.policy.pod" -}}
# Settings.
- name: dialects
  expression: {{ .Values.shares.dialects | toJson | quote }}
- name: gated
  expression: {{ ternary "true" "false" (eq .Values.placement "gates") | quote }}
{{- include "deviceshare.policy.variables" (list . "tables/devices" "tables/shares" "pod") }}
{{- end }}

{{- define "deviceshare.policy.metadata" -}}
metadata:
  name: {{ index . 1 }}
  {{- include "deviceshare.marks" (list (index . 0) (include "deviceshare.labels" (index . 0)) dict (include "deviceshare.sharedNodeLabels" (index . 0) | fromYaml)) | nindent 2 }}
{{- end }}

{{/* Pods at their creation, and new ephemeral containers. */}}
{{- define "deviceshare.policy.pods" -}}
resourceRules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: {{ index . 1 }}
    resources: [pods]
    scope: Namespaced
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [UPDATE]
    resources: [pods/ephemeralcontainers]
    scope: Namespaced
{{ include "deviceshare.namespaceSelector" (index . 0) }}
{{- end }}

{{/* Whether a pod names a group, of `object` or `oldObject`. */}}
{{- define "deviceshare.policy.named" -}}
(has({{ . }}.metadata.annotations) && 'deviceshare.io/group' in {{ . }}.metadata.annotations) ||
(has({{ . }}.metadata.labels) && 'deviceshare.io/group' in {{ . }}.metadata.labels)
{{- end }}
{{/* Whether a new pod has annotations of deviceshare's, or limits by which one asks for a share, misspelt ones too. */}}
{{- define "deviceshare.policy.asks" -}}
{{- $asks := printf "exists(c, has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r, %s.exists(f, r.startsWith(f))))" (include "deviceshare.shareFamilies" . | replace "\"" "'") -}}
(has(object.metadata.annotations) && object.metadata.annotations.exists(key, key.startsWith('deviceshare.io/'){{ if has "kai" .Values.shares.dialects }} || key in ['gpu-fraction', 'gpu-memory']{{ end }})) ||
(has(object.spec.containers) && object.spec.containers.{{ $asks }}) ||
(has(object.spec.initContainers) && object.spec.initContainers.{{ $asks }})
{{- end }}

{{/* Creations of pods that want devices, and updates of those that are said to have some. */}}
{{- define "deviceshare.policy.wantsDevices" -}}
- name: wants-devices
  expression: >-
    {{- include "deviceshare.policy.named" "object" | nindent 4 }} || request.operation == 'CREATE' && (
    {{- include "deviceshare.policy.asks" . | nindent 4 }}) || request.operation == 'UPDATE' && (
    {{- include "deviceshare.policy.named" "oldObject" | nindent 4 }})
{{- end }}

{{/* What deviceshare itself changes needs no review; ephemeral containers are never its own. */}}
{{- define "deviceshare.policy.notByDeviceshare" -}}
- name: not-by-deviceshare
  expression: >-
    request.operation == 'CREATE' || has(request.subResource) ||
    request.userInfo.username != '{{ include "deviceshare.policy.identity" . }}'
{{- end }}

{{- define "deviceshare.policy.identity" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ .Values.serviceAccount.name }}
{{- end }}

{{/* A binding of the policy of the same name: include "deviceshare.policy.binding" (list $ NAME ACTION). */}}
{{- define "deviceshare.policy.binding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
{{ include "deviceshare.policy.metadata" . }}
spec:
  policyName: {{ index . 1 }}
  validationActions: [{{ index . 2 }}]
{{- end }}

{{/* A rule: what holds, and the variable with the text of its refusal: list CONDITION VARIABLE. */}}
{{- define "deviceshare.policy.rule" -}}
- expression: "!{{ index . 0 }} || {{ index . 1 }} == ''"
  # The API server evaluates it for requests that it admits, too.
  messageExpression: "{{ index . 0 }} ? {{ index . 1 }} : ''"
  message: deviceshare refuses this, for a reason that is too long or has characters which can't be shown
  reason: Forbidden
{{- end }}
