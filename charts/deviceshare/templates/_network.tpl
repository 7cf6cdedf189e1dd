{{/*
The ports on which the pods listen, as JSON. With hostNetwork they are the nodes' own: others than those that are often taken
there, and than the agents' (9410, 9412) and the control plane's (10259). Refuses a port of the webhooks that is taken.
*/}}
{{- define "deviceshare.ports" -}}
{{- $ports := dict "probe" 8080 "extender" 8888 "page" 8088 "scheduler" 10259 "schedulerPlain" 10251 -}}
{{- $taken := values $ports -}}
{{- if .Values.hostNetwork -}}
{{- $ports = dict "probe" 9408 "extender" 9409 "scheduler" 9411 "schedulerPlain" 9413 -}}
{{- $taken = concat (values $ports) (list 9410 9412 10250 10256) -}}
{{- end -}}
{{- range $taken -}}
{{- if and (eq (int .) (int $.Values.webhooks.port)) (include "deviceshare.webhooks" $) -}}
{{- fail (printf "webhooks.port=%d is taken by another part of the pods%s: choose another port, such as 9443" (int .) (ternary ", or of the node" "" $.Values.hostNetwork)) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $ports "webhook" (int .Values.webhooks.port) -}}
{{ toJson $ports }}
{{- end }}

{{/* Not empty where the extender demands client certificates: on the network, and on a loopback that the whole node shares. */}}
{{- define "deviceshare.extenderTLS" -}}
{{- if or (include "deviceshare.networkedExtender" .) (and .Values.hostNetwork (include "deviceshare.scheduler" .)) }}yes{{ end }}
{{- end }}

{{/* The name in the extender's certificate. */}}
{{- define "deviceshare.extenderName" -}}
{{ include "deviceshare.fullname" . }}-extender.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The Secret with the extender's certificate. */}}
{{- define "deviceshare.extenderSecret" -}}
{{- if .Values.certManager.enabled -}}
{{ .Values.extender.tlsSecret | default (printf "%s-extender-tls" (include "deviceshare.fullname" .)) }}
{{- else if .Values.scheduler.enabled -}}
{{ required "extender.tlsSecret is needed, since with hostNetwork every process of the node reaches the extender, which is then called over mutual TLS: name a Secret with tls.crt, tls.key and ca.crt, or set certManager.enabled=true, or placement=gates, which needs no extender" .Values.extender.tlsSecret }}
{{- else -}}
{{ required "extender.tlsSecret is needed, since with scheduler.enabled=false the extender is called over mutual TLS: name a Secret with tls.crt, tls.key and ca.crt, or set certManager.enabled=true" .Values.extender.tlsSecret }}
{{- end }}
{{- end }}

{{/* The Secret with the client certificate of the kube-scheduler in the pod; empty where it calls over plain HTTP. */}}
{{- define "deviceshare.extenderClientSecret" -}}
{{- if and .Values.hostNetwork (include "deviceshare.scheduler" .) -}}
{{- $_ := include "deviceshare.extenderSecret" . -}}
{{- if or .Values.extender.clientTLSSecret (not (and .Values.certManager.enabled (not .Values.extender.tlsSecret))) -}}
{{ required "extender.clientTLSSecret is needed beside extender.tlsSecret, since with hostNetwork the kube-scheduler in the pod calls the extender over mutual TLS: name a Secret with the client's tls.crt and tls.key and the extender's CA as ca.crt" .Values.extender.clientTLSSecret }}
{{- else -}}
{{ include "deviceshare.fullname" . }}-extender-client-tls
{{- end -}}
{{- end -}}
{{- end }}

{{/* Not empty where a NetworkPolicy can protect the pods: none applies to pods in the nodes' network. Refuses what it was to do. */}}
{{- define "deviceshare.networkPolicy" -}}
{{- if .Values.networkPolicy.enabled -}}
{{- if not .Values.hostNetwork -}}
yes
{{- else if or .Values.networkPolicy.webhookFrom .Values.networkPolicy.metricsFrom -}}
{{- fail "networkPolicy.webhookFrom and networkPolicy.metricsFrom need pods in the pods' network, since no NetworkPolicy applies to pods in the nodes': leave them empty, or set hostNetwork=false, and limit the nodes' ports by a firewall" -}}
{{- end -}}
{{- end -}}
{{- end }}
