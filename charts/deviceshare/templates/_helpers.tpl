{{/* Selectors never change: those of a Deployment can't, and commands find pods by them. No value enters here. */}}
{{- define "deviceshare.selector" -}}
app.kubernetes.io/name: deviceshare
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deviceshare.labels" -}}
{{ include "deviceshare.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The release of Kubernetes, 1.30.4 of v1.30.4-gke.100, and 1.34.0 of 1.34 or 1.34+. Refuses what names none. */}}
{{- define "deviceshare.kubernetes" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- $found := regexFind "^v?[0-9]+[.][0-9]+([.][0-9]+)?" $version | trimPrefix "v" -}}
{{- if not $found -}}
{{- fail (printf "the cluster's version %q names no release of Kubernetes, on which much of this chart depends: render with --kube-version, as in 1.34.0 (Argo CD: source.helm.kubeVersion)" $version) -}}
{{- end -}}
{{ $found }}{{ if lt (len (splitList "." $found)) 3 }}.0{{ end }}
{{- end }}

{{/* Not empty where the cluster is at least of a version: include "deviceshare.since" (list $ "1.28"). */}}
{{- define "deviceshare.since" -}}
{{- if semverCompare (printf ">=%s.0" (index . 1)) (include "deviceshare.kubernetes" (index . 0)) }}yes{{ end }}
{{- end }}

{{/* Not empty where the leader places pods itself, behind a scheduling gate. */}}
{{- define "deviceshare.gates" -}}
{{- if eq .Values.placement "gates" -}}
{{- if not (include "deviceshare.since" (list . "1.27")) -}}
{{- fail "placement=gates needs Kubernetes 1.27 or later: older API servers drop a pod's scheduling gates; use placement=extender" -}}
{{- end -}}
yes
{{- end -}}
{{- end }}

{{/* Not empty where ResourceClaims of deviceshare's own hold devices. */}}
{{- define "deviceshare.holds" -}}
{{- if .Values.dra.holds -}}
{{- if not (include "deviceshare.since" (list . "1.34")) -}}
{{- fail "dra.holds needs Kubernetes 1.34 or later, which serves resource.k8s.io/v1: unset it" -}}
{{- end -}}
yes
{{- end -}}
{{- end }}

{{/* Not empty where groups may hand their devices over by a ResourceClaim. */}}
{{- define "deviceshare.handoverByClaim" -}}
{{- if .Values.dra.handover -}}
{{- if not (include "deviceshare.holds" .) -}}
{{- fail "dra.handover: groups' ResourceClaims are holds, too: set dra.holds=true" -}}
{{- end -}}
yes
{{- end -}}
{{- end }}

{{/* Not empty where the pod has a kube-scheduler, which needs the extender. */}}
{{- define "deviceshare.scheduler" -}}
{{- if and .Values.scheduler.enabled (has "extender" .Values.roles) (not (include "deviceshare.gates" .)) }}yes{{ end }}
{{- end }}

{{/* Not empty where the extender is called over the network. */}}
{{- define "deviceshare.networkedExtender" -}}
{{- if and (not .Values.scheduler.enabled) (has "extender" .Values.roles) (not (include "deviceshare.gates" .)) }}yes{{ end }}
{{- end }}

{{/* The node selector of what runs on each shared node: include "deviceshare.sharedNodes" (list $ selector). */}}
{{- define "deviceshare.sharedNodes" -}}
{{- $ := index . 0 -}}
{{- $all := dict "kubernetes.io/os" "linux" -}}
{{- if not $.Values.shares.nodeLabels -}}{{- $_ := set $all "deviceshare.io/mode" "shared" -}}{{- end -}}
nodeSelector: {{- toYaml (merge $all (index . 1)) | nindent 2 }}
{{- if $.Values.shares.nodeLabels }}
# A selector can't say that either label will do.
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: deviceshare.io/mode, operator: In, values: [shared]}
        {{- range $.Values.shares.nodeLabels }}
        {{- $label := splitn "=" 2 . }}
        - matchExpressions:
            - {key: {{ $label._0 }}, operator: In, values: [{{ $label._1 | quote }}]}
            - {key: deviceshare.io/mode, operator: DoesNotExist}
        {{- end }}
{{- end }}
{{- end }}

{{/* The limits by which containers ask for a share, as deviceshare/domain/objects/shares.py has them, as JSON. */}}
{{- define "deviceshare.shareResources" -}}
{{- $resources := list "deviceshare.io/gpu-count" "deviceshare.io/gpu-mem" "deviceshare.io/gpu-mem-mib" "deviceshare.io/gpu-percent" -}}
{{- $dialects := .Values.shares.dialects -}}
{{- range $system, $resource := dict "gpushare" "aliyun.com/gpu-mem" "metagpu" "cnvrg.io/metagpu" -}}
{{- if has $system $dialects -}}{{- $resources = append $resources $resource -}}{{- end -}}
{{- end -}}
{{ toJson $resources }}
{{- end }}

{{/* How limits begin that ask for a share or may mean to, as deviceshare/domain/objects/shares.py has it, as JSON. */}}
{{- define "deviceshare.shareFamilies" -}}
{{- $families := list "deviceshare.io/" -}}
{{- range $system, $family := dict "gpushare" "aliyun.com/gpu" "hami" "nvidia.com/gpumem" "metagpu" "cnvrg.io/metagpu" -}}
{{- if has $system $.Values.shares.dialects -}}{{- $families = append $families $family -}}{{- end -}}
{{- end -}}
{{ toJson $families }}
{{- end }}

{{/* How devices are handed over; refuses what can't work together. */}}
{{- define "deviceshare.handover" -}}
{{- if .Values.handover.nri -}}
{{- if or .Values.handover.runtimeClassName .Values.agent.runtimeClassName -}}
{{- fail "handover.nri and a RuntimeClass (handover.runtimeClassName, agent.runtimeClassName) exclude each other: the GPU operator deletes its RuntimeClasses where its NRI plugin is enabled, and a pod that names one is refused; unset the class" -}}
{{- end -}}
{{- if has .Values.handover.style (list "index" "uuid") -}}
{{- fail (printf "handover.style=%s and handover.nri exclude each other: the plugin takes CDI names only; unset handover.style, or set it to cdi" .Values.handover.style) -}}
{{- end -}}
cdi
{{- else -}}
{{ .Values.handover.style }}
{{- end -}}
{{- end }}

{{/* Not empty where deviceshare issues the webhooks' certificate itself. */}}
{{- define "deviceshare.ownCA" -}}
{{- if and (include "deviceshare.webhooks" .) (not .Values.certManager.enabled) }}yes{{ end }}
{{- end }}

{{/* The Secret with the webhooks' certificate, where cert-manager issues it. */}}
{{- define "deviceshare.webhookSecret" -}}
{{- if and (include "deviceshare.webhooks" .) .Values.certManager.enabled }}{{ include "deviceshare.fullname" . }}-webhook-tls{{ end }}
{{- end }}

{{/* The ConfigMap with the CAs whose clients alone may call the webhooks. */}}
{{- define "deviceshare.webhookClients" -}}
{{- if include "deviceshare.webhooks" . }}{{ .Values.webhooks.clientCAConfigMap }}{{ end }}
{{- end }}
