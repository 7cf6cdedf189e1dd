{{/*
What the objects of the release are called, and what is written on all of them. A cluster has one deviceshare, so no name is made of
the release's. Whatever people, pods or deviceshare's commands know by name (CRDs, webhook configurations, policies, the roles for
people, the scheduler, its lease, the CA's Secret) keeps it.
*/}}
{{- define "deviceshare.fullname" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default "deviceshare" }}
{{- end }}

{{/*
Labels and annotations: include "deviceshare.marks" (list $ LABELS) or (list $ LABELS MORE-LABELS ANNOTATIONS), the first as YAML, the
others as maps. The chart's own labels can't be replaced; further ones count before those that are common to all objects.
*/}}
{{- define "deviceshare.marks" -}}
{{- $ := index . 0 -}}
{{- $own := index . 1 | fromYaml -}}
{{- $more := dict -}}{{- if gt (len .) 2 -}}{{- $more = index . 2 | default dict -}}{{- end -}}
{{- $annotations := dict -}}{{- if gt (len .) 3 -}}{{- $annotations = index . 3 | default dict -}}{{- end -}}
{{- range $name := list "name" "instance" "version" "managed-by" -}}
{{- $more = omit $more (printf "app.kubernetes.io/%s" $name) -}}
{{- end -}}
labels: {{- merge dict $more $own ($.Values.commonLabels | default dict) | toYaml | nindent 2 }}
{{- with merge dict $annotations ($.Values.commonAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* An image and the tag it has where its values name none: include "deviceshare.image" (list $ .Values.image "1.0"). */}}
{{- define "deviceshare.image" -}}
{{- $ := index . 0 -}}
{{- $image := index . 1 -}}
{{- with ($.Values.global | default dict).imageRegistry | default $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (index . 2) }}{{ end -}}
{{- end }}

{{/* The tag of kube-scheduler's image: the cluster's release. Who renders for 1.34 gets v1.34.0, which each minor version has. */}}
{{- define "deviceshare.schedulerTag" -}}
v{{ include "deviceshare.kubernetes" . }}
{{- end }}
