{{/* A Certificate: include "deviceshare.certificate" (list $ NAME USAGE NAMES): its Secret is NAME-tls. */}}
{{- define "deviceshare.certificate" -}}
{{- $ := index . 0 -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  {{- include "deviceshare.marks" (list $ (include "deviceshare.labels" $)) | nindent 2 }}
spec:
  secretName: {{ index . 1 }}-tls
  duration: {{ $.Values.certManager.duration }}
  dnsNames: {{- toYaml (index . 3) | nindent 4 }}
  usages: [digital signature, {{ index . 2 }}]
  privateKey:
    algorithm: ECDSA
    rotationPolicy: Always
  issuerRef:
    {{- with $.Values.certManager.issuerRef }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    kind: Issuer
    name: {{ include "deviceshare.fullname" $ }}-ca
    {{- end }}
{{- end }}
