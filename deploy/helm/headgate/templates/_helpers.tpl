{{- define "headgate.name" -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{- define "headgate.selector" -}}
app.kubernetes.io/name: gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "headgate.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: headgate
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "headgate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headgate.settings" -}}
{{- if .Values.config -}}{{ toYaml .Values.config }}{{- else -}}{{ .Files.Get "files/headgate.yaml" | trimSuffix "\n" }}{{- end }}
{{ end -}}

{{- define "headgate.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
headgate.sidecar is the init container (a native sidecar) of a pod that has the volumes of headgate.volumes. Envoy, in the same
pod, mounts the volume "socket" at /run/headgate. It takes a dict: context is this chart's (.Subcharts.headgate in a chart that
depends on it), protects is the container whose memory limit the byte budget derives from.
*/}}
{{- define "headgate.sidecar" -}}
{{- $v := .context.Values -}}
- name: extproc
  image: {{ include "headgate.image" .context }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  restartPolicy: Always
  env:
  {{- if $v.monitoring.enabled }}
  - name: HEADGATE_LISTEN_METRICS
    value: 0.0.0.0:9005
  {{- end }}
  - name: HEADGATE_CONFIG
    value: /etc/headgate/headgate.yaml
  - name: HEADGATE_BYTES_BUDGET_PROTECTED_MEMORY
    valueFrom:
      resourceFieldRef:
        containerName: {{ .protects }}
        resource: limits.memory
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: OTEL_RESOURCE_ATTRIBUTES
    value: service.instance.id=$(POD_NAME),k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE)
  - name: GOMEMLIMIT
    value: {{ $v.sidecar.goMemLimit }}
  {{- with $v.sidecar.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if $v.monitoring.enabled }}
  ports:
  - name: metrics
    containerPort: 9005
  {{- end }}
  startupProbe:
    exec:
      command: [/extproc, health, --address, "127.0.0.1:9003"]
    periodSeconds: 1
    timeoutSeconds: 3
    failureThreshold: 60
  readinessProbe:
    exec:
      command: [/extproc, health, --address, "127.0.0.1:9003"]
    periodSeconds: 5
    timeoutSeconds: 3
  livenessProbe:
    exec:
      command: [/extproc, health, --address, "127.0.0.1:9003", --path, /livez]
    periodSeconds: 10
    timeoutSeconds: 3
  resources:
    {{- toYaml $v.sidecar.resources | nindent 4 }}
  securityContext:
    runAsUser: 65532
    runAsGroup: 65532
    {{- include "headgate.hardened" . | nindent 4 }}
  volumeMounts:
  - name: socket
    mountPath: /run/headgate
  - name: headgate-config
    mountPath: /etc/headgate
    readOnly: true
  {{- with $v.sidecar.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* headgate.volumes are what the sidecar needs of its pod. It takes this chart's context. The pod's fsGroup is 65532. */}}
{{- define "headgate.volumes" -}}
- name: socket
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
- name: headgate-config
  configMap:
    name: {{ include "headgate.name" . }}-headgate-config
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
