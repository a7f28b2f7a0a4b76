{{/* Names, labels and images, each written once. */}}

{{- define "trialtap.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "trialtap.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "trialtap.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "trialtap.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide names carry the namespace; they begin with `trialtap`, behind `istio-sidecar-injector`,
     so that our sidecar comes to stand behind a mesh's. */}}
{{- define "trialtap.clusterName" -}}
{{- if eq .Release.Namespace (include "trialtap.fullname" .) -}}
{{- printf "trialtap-%s" (include "trialtap.fullname" . | trimPrefix "trialtap" | trimPrefix "-") | trimSuffix "-" -}}
{{- else -}}
{{- printf "trialtap-%s-%s" .Release.Namespace (include "trialtap.fullname" . | trimPrefix "trialtap" | trimPrefix "-") | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* selector labels: (list . "webhook") */}}
{{- define "trialtap.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ include "trialtap.name" $top }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* metadata's labels and annotations: (list . "webhook") or (list . "webhook" annotations) */}}
{{- define "trialtap.metadata" -}}
{{- $top := index . 0 -}}
labels:
  {{- include "trialtap.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
  app.kubernetes.io/part-of: trialtap
  app.kubernetes.io/managed-by: {{ $top.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
  {{- with $top.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $own := dict }}
{{- if gt (len .) 2 }}{{ $own = index . 2 }}{{ end }}
{{- with merge (dict) $own $top.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* an image: (list . .Values.image.server) */}}
{{- define "trialtap.image" -}}
{{- $top := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $top.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default $top.Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{- define "trialtap.webhook" -}}{{ include "trialtap.fullname" . }}-webhook{{- end -}}
{{- define "trialtap.dbManager" -}}{{ include "trialtap.fullname" . }}-db-manager{{- end -}}
{{- define "trialtap.certificates" -}}{{ include "trialtap.fullname" . }}-certificates{{- end -}}
{{- define "trialtap.dbManagerTLS" -}}{{ include "trialtap.fullname" . }}-db-manager-tls{{- end -}}

{{- define "trialtap.controller" -}}{{ include "trialtap.fullname" . }}-controller{{- end -}}

{{- define "trialtap.controllerAccount" -}}
{{- default (include "trialtap.controller" .) .Values.controller.serviceAccount.name -}}
{{- end -}}
{{- define "trialtap.webhookAccount" -}}
{{- default (include "trialtap.webhook" .) .Values.webhook.serviceAccount.name -}}
{{- end -}}
{{- define "trialtap.dbManagerAccount" -}}
{{- default (include "trialtap.dbManager" .) .Values.dbManager.serviceAccount.name -}}
{{- end -}}

{{/* the Secret with tls.crt and tls.key that the webhook mounts: not with builtin, whose pods write files */}}
{{- define "trialtap.servingSecret" -}}
{{- if eq .Values.certificates.mode "provided" -}}
{{- required "certificates.provided.secretName: name the Secret that holds tls.crt and tls.key" .Values.certificates.provided.secretName -}}
{{- else -}}
{{- include "trialtap.certificates" . -}}
{{- end -}}
{{- end -}}

{{/* HOST:PORT that collectors report to */}}
{{- define "trialtap.dbAddress" -}}
{{- if .Values.dbManager.enabled -}}
{{- printf "%s.%s.svc:6789" (include "trialtap.dbManager" .) .Release.Namespace -}}
{{- else -}}
{{- required "dbManager.address: give HOST:PORT of the DB manager to report to, or enable dbManager" .Values.dbManager.address -}}
{{- end -}}
{{- end -}}

{{- define "trialtap.anyWebhook" -}}
{{- if or .Values.webhooks.pod .Values.webhooks.experiment .Values.webhooks.trial }}yes{{ end -}}
{{- end -}}
{{- define "trialtap.mutating" -}}
{{- if or .Values.webhooks.pod .Values.webhooks.experiment }}yes{{ end -}}
{{- end -}}
{{- define "trialtap.validating" -}}
{{- if or .Values.webhooks.experiment .Values.webhooks.trial }}yes{{ end -}}
{{- end -}}

{{- define "trialtap.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* what webhook and DB manager pods have in common: (list . "webhook" .Values.webhook) */}}
{{- define "trialtap.podSpec" -}}
{{- $top := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index . 2 -}}
securityContext:
  {{- toYaml $top.Values.podSecurityContext | nindent 2 }}
enableServiceLinks: false
{{- with $top.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if $values.topologySpreadConstraints }}
  {{- toYaml $values.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "trialtap.selector" (list $top $component) | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "trialtap.podMetadata" -}}
{{- $top := index . 0 -}}
{{- $values := index . 2 -}}
labels:
  {{- include "trialtap.selector" . | nindent 2 }}
  {{- with merge (dict) $values.podLabels $top.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
