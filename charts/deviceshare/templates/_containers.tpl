{{- define "deviceshare.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The chart's own fields with the user's over them: include "deviceshare.over" (list DEFAULT VALUES), the former as YAML. */}}
{{- define "deviceshare.over" -}}
{{ toYaml (mergeOverwrite (fromYaml (index . 0)) (deepCopy (index . 1 | default dict))) }}
{{- end }}

{{/* The Secrets for pulling images, by name, as a field of a pod's spec; nothing where there are none. */}}
{{- define "deviceshare.pullSecrets" -}}
{{- $names := list -}}
{{- range concat ((.Values.global | default dict).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) -}}
{{- $names = append $names (ternary . (get (ternary (dict) . (kindIs "string" .)) "name") (kindIs "string" .)) -}}
{{- end -}}
{{- with uniq $names }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end -}}
{{- end }}

{{/* What is the same of all Services: include "deviceshare.serviceFields" $, inside of their spec. */}}
{{- define "deviceshare.serviceFields" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "deviceshare.container" -}}
{{- $ports := include "deviceshare.ports" . | fromJson -}}
- name: deviceshare
  image: {{ include "deviceshare.image" (list . .Values.image .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - run
    - --roles={{ join "," .Values.roles }}
    {{- if include "deviceshare.gates" . }}
    - --placement=gates
    {{- if not (include "deviceshare.webhooks" .) }}
    - --dialects={{ join "," .Values.shares.dialects }}
    {{- end }}
    {{- end }}
    - --identity=system:serviceaccount:{{ .Release.Namespace }}:{{ .Values.serviceAccount.name }}
    - --namespace={{ .Release.Namespace }}
    - --excluded-namespaces={{ join "," (include "deviceshare.leftOut" . | fromJsonArray) }}
    - --handover={{ include "deviceshare.handover" . }}
    {{- with .Values.handover.cdiKind }}
    - --cdi-kind={{ . }}
    {{- end }}
    {{- with .Values.handover.runtimeClassName }}
    - --runtime-class={{ . }}
    {{- end }}
    {{- with .Values.shares.nodeLabels }}
    - --shared-node-labels={{ join "," . }}
    {{- end }}
    - --release-after={{ .Values.groups.releaseAfter }}
    - --deletion-policy={{ .Values.groups.deletionPolicy }}
    - --uninjected-pods={{ .Values.uninjectedPods }}
    - --keep-nodes={{ ternary "on" "off" .Values.autoscaling.keepNodes }}
    - --scaling-pods={{ ternary "on" "off" .Values.autoscaling.scalingPods }}
    - --dra-holds={{ ternary "on" "off" (eq (include "deviceshare.holds" .) "yes") }}
    {{- if include "deviceshare.handoverByClaim" . }}
    - --dra-handover=on
    {{- end }}
    - --preemption={{ ternary "on" "off" .Values.preemption }}
    {{- with .Values.webhooks.namespaceSelector }}
    - {{ printf "--namespace-selector=%s" (toJson .) | quote }}
    {{- end }}
    - --probe-bind=:{{ $ports.probe }}
    {{- if ne (int .Values.metrics.groups) 500 }}
    - --group-metrics={{ int .Values.metrics.groups }}
    {{- end }}
    {{- if .Values.hostNetwork }}
    # The whole node shares its loopback.
    - --ui-bind=off
    {{- end }}
    {{- if include "deviceshare.scheduler" . }}
    - --extender-bind=127.0.0.1:{{ $ports.extender }}
    {{- else if include "deviceshare.networkedExtender" . }}
    - --extender-bind=:{{ $ports.extender }}
    {{- end }}
    {{- if include "deviceshare.extenderTLS" . }}
    - --extender-tls-cert=/etc/deviceshare/extender/tls.crt
    - --extender-tls-key=/etc/deviceshare/extender/tls.key
    - --extender-client-ca=/etc/deviceshare/extender/ca.crt
    {{- end }}
    - --admission={{ if include "deviceshare.changesAdmission" . }}webhooks{{ else }}{{ include "deviceshare.admission" . }}{{ end }}
    {{- if include "deviceshare.webhooks" . }}
    - --webhook-bind=:{{ $ports.webhook }}
    {{- if .Values.agent.enabled }}
    - --agent-identity={{ include "deviceshare.agent.identity" . }}
    {{- end }}
    {{- with include "deviceshare.agent.url" . }}
    - --agent-url={{ . }}
    {{- end }}
    - --bypasses={{ .Values.webhooks.bypasses }}
    - --dialects={{ join "," .Values.shares.dialects }}
    - --unsupported={{ .Values.shares.unsupported }}
    - --replaced-schedulers={{ join "," .Values.shares.replacedSchedulers }}
    - --framework-limits={{ ternary "on" "off" .Values.shares.frameworkLimits }}
    - --isolation={{ .Values.shares.isolation }}
    - --memory-limits={{ .Values.shares.memoryLimits }}
    - --group-memory={{ .Values.groups.memory }}
    - --tolerations={{ ternary "on" "off" .Values.handover.tolerations }}
    {{- if include "deviceshare.webhookClients" . }}
    - --webhook-client-ca=/etc/deviceshare/webhook-clients/ca.crt
    {{- end }}
    {{- if .Values.certManager.enabled }}
    - --tls-cert=/etc/deviceshare/webhook/tls.crt
    - --tls-key=/etc/deviceshare/webhook/tls.key
    {{- else }}
    - --ca-secret=deviceshare-ca
    - --webhook-service={{ include "deviceshare.fullname" . }}
    - --webhook-config=deviceshare
    {{- end }}
    {{- end }}
    - --log-format={{ .Values.log.format }}
    - --log-level={{ .Values.log.level }}
    {{- with .Values.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.extraEnv }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  # A server-side apply to Kubernetes 1.20 needs the protocols spelt out.
  ports:
    - name: probe
      containerPort: {{ $ports.probe }}
      protocol: TCP
    {{- if include "deviceshare.webhooks" . }}
    - name: webhook
      containerPort: {{ $ports.webhook }}
      protocol: TCP
    {{- end }}
    {{- if include "deviceshare.networkedExtender" . }}
    - name: extender
      containerPort: {{ $ports.extender }}
      protocol: TCP
    {{- end }}
  # The probes are served first, but on a busy node Python alone may need longer than the liveness probe waits.
  {{- $startup := "{httpGet: {path: /livez, port: probe}, periodSeconds: 1, timeoutSeconds: 3, failureThreshold: 120}" }}
  startupProbe: {{- include "deviceshare.over" (list $startup .Values.startupProbe) | nindent 4 }}
  {{- $liveness := "{httpGet: {path: /livez, port: probe}, periodSeconds: 5, timeoutSeconds: 3, failureThreshold: 3}" }}
  livenessProbe: {{- include "deviceshare.over" (list $liveness .Values.livenessProbe) | nindent 4 }}
  {{- $readiness := "{httpGet: {path: /readyz, port: probe}, periodSeconds: 2, timeoutSeconds: 2, failureThreshold: 2}" }}
  readinessProbe: {{- include "deviceshare.over" (list $readiness .Values.readinessProbe) | nindent 4 }}
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext: {{- include "deviceshare.over" (list (include "deviceshare.securityContext" .) .Values.securityContext) | nindent 4 }}
  {{- if or (include "deviceshare.extenderTLS" .) (include "deviceshare.webhookSecret" .) (include "deviceshare.webhookClients" .) .Values.extraVolumeMounts }}
  volumeMounts:
    {{- if include "deviceshare.webhookClients" . }}
    - {name: webhook-clients, mountPath: /etc/deviceshare/webhook-clients, readOnly: true}
    {{- end }}
    {{- if include "deviceshare.webhookSecret" . }}
    - {name: webhook-tls, mountPath: /etc/deviceshare/webhook, readOnly: true}
    {{- end }}
    {{- if include "deviceshare.extenderTLS" . }}
    - {name: extender-tls, mountPath: /etc/deviceshare/extender, readOnly: true}
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end }}

{{- define "deviceshare.schedulerContainer" -}}
{{- $ports := include "deviceshare.ports" . | fromJson -}}
- name: kube-scheduler
  image: {{ include "deviceshare.image" (list . .Values.scheduler.image (include "deviceshare.schedulerTag" .)) }}
  imagePullPolicy: {{ .Values.scheduler.image.pullPolicy }}
  command: [kube-scheduler]
  args:
    - --config=/etc/deviceshare-scheduler/config.yaml
    - --secure-port={{ $ports.scheduler }}
    # Looking up who asks would need a right in kube-system.
    - --authentication-skip-lookup=true
    {{- if include "deviceshare.schedulerMetrics" . }}
    - --authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics
    {{- end }}
    {{- with .Values.scheduler.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: scheduler
      containerPort: {{ $ports.scheduler }}
      protocol: TCP
  # deviceshare's probe, on purpose: a leading kube-scheduler can't work without the deviceshare in its pod, and has to
  # leave the lease to another pod's. When kube-scheduler itself hangs, it loses the lease anyway. The port has to be a
  # number: a kubelet looks for names in the container's own ports only, and ignores a probe whose port it can't find.
  startupProbe:
    httpGet: {path: /livez, port: {{ $ports.probe }}}
    periodSeconds: 1
    timeoutSeconds: 3
    failureThreshold: 120
  livenessProbe:
    httpGet: {path: /livez, port: {{ $ports.probe }}}
    periodSeconds: 5
    timeoutSeconds: 3
    failureThreshold: 5
  readinessProbe:
    httpGet: {path: /healthz, port: scheduler, scheme: HTTPS}
    periodSeconds: 5
    timeoutSeconds: 3
    failureThreshold: 3
  resources: {{- toYaml .Values.scheduler.resources | nindent 4 }}
  securityContext: {{- include "deviceshare.over" (list (include "deviceshare.securityContext" .) .Values.securityContext) | nindent 4 }}
  volumeMounts:
    - {name: scheduler-config, mountPath: /etc/deviceshare-scheduler, readOnly: true}
    {{- if include "deviceshare.extenderClientSecret" . }}
    - {name: extender-client-tls, mountPath: /etc/deviceshare/extender-client, readOnly: true}
    {{- end }}
{{- end }}

{{- define "deviceshare.volumes" -}}
{{- if or (include "deviceshare.scheduler" .) (include "deviceshare.extenderTLS" .) (include "deviceshare.webhookSecret" .) (include "deviceshare.webhookClients" .) .Values.extraVolumes -}}
volumes:
  {{- with include "deviceshare.webhookClients" . }}
  - name: webhook-clients
    configMap:
      name: {{ . }}
  {{- end }}
  {{- if include "deviceshare.scheduler" . }}
  - name: scheduler-config
    configMap:
      name: {{ include "deviceshare.fullname" . }}-scheduler
  {{- end }}
  {{- with include "deviceshare.webhookSecret" . }}
  - name: webhook-tls
    secret:
      secretName: {{ . }}
  {{- end }}
  {{- if include "deviceshare.extenderTLS" . }}
  - name: extender-tls
    secret:
      secretName: {{ include "deviceshare.extenderSecret" . }}
  {{- end }}
  {{- with include "deviceshare.extenderClientSecret" . }}
  - name: extender-client-tls
    secret:
      secretName: {{ . }}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
