{{/* Who writes the status of NodeDevices without the right to write all of it: agents, and people with deviceshare-recover. */}}
{{- define "deviceshare.writesStatusAlone" -}}
request.userInfo.username == '{{ include "deviceshare.agent.identity" . }}' || !authorizer.group('deviceshare.io').resource('nodedevices').check('patch').allowed()
{{- end }}

{{/*
Not empty where the API server serves MutatingAdmissionPolicy v1, as it does from 1.36 on unless that is turned off. Who renders
for a version only, as `helm template` does, knows no kinds: then the version decides.
*/}}
{{- define "deviceshare.servesPolicies" -}}
{{- $versions := .Capabilities.APIVersions -}}
{{- if $versions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
yes
{{- else if not ($versions.Has "v1/Pod") -}}
{{ include "deviceshare.since" (list . "1.36") }}
{{- end -}}
{{- end }}

{{/* How pods and groups are admitted: `policies` or `webhooks`. Refuses policies where the API server has none. */}}
{{- define "deviceshare.admission" -}}
{{- $served := include "deviceshare.servesPolicies" . -}}
{{- if and (eq .Values.admission "policies") (not $served) -}}
{{- fail (printf "admission=policies needs MutatingAdmissionPolicy in admissionregistration.k8s.io/v1, which Kubernetes %s doesn't serve (1.36 and later do, unless --runtime-config turns it off): set admission=auto or webhooks" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $translates := or (has "hami" .Values.shares.dialects) (has "kai" .Values.shares.dialects) -}}
{{- $byClaim := include "deviceshare.handoverByClaim" . -}}
{{- if and (eq .Values.admission "policies") $byClaim -}}
{{- fail "dra.handover: webhooks alone know which pods get a ResourceClaim: unset it, or set admission=webhooks" -}}
{{- end -}}
{{- if and (eq .Values.admission "policies") $translates -}}
{{- fail "shares.dialects: webhooks alone translate what pods ask for in the words of hami and kai: leave both out, or set admission=webhooks" -}}
{{- end -}}
{{- if or (eq .Values.admission "policies") (and (eq .Values.admission "auto") $served (not $translates) (not $byClaim) (has "webhook" .Values.roles)) -}}
policies
{{- else -}}
webhooks
{{- end -}}
{{- end }}

{{/*
Not empty in the one upgrade that changes from webhooks to policies. The API server needs a second to put new policies in force,
in which nothing would review what webhooks reviewed: so they stay for this upgrade, and the next one takes them away.
*/}}
{{- define "deviceshare.changesAdmission" -}}
{{- if and .Release.IsUpgrade (eq (include "deviceshare.admission" .) "policies") -}}
{{- $api := "admissionregistration.k8s.io/v1" -}}
{{- if and (lookup $api "ValidatingWebhookConfiguration" "" "deviceshare") (not (lookup $api "ValidatingAdmissionPolicyBinding" "" "deviceshare-pods")) -}}
yes
{{- end -}}
{{- end -}}
{{- end }}

{{/* Not empty where this release serves webhooks. */}}
{{- define "deviceshare.webhooks" -}}
{{- if has "webhook" .Values.roles -}}
{{- if or (eq (include "deviceshare.admission" .) "webhooks") (include "deviceshare.changesAdmission" .) -}}
yes
{{- end -}}
{{- end -}}
{{- end }}
