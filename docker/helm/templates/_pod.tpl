{{- define "labels" -}}
app.kubernetes.io/name: stream-dppca
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* A value as an environment has it: lists joined, and numbers as in JSON, because 1000000 must not become 1e+06. */}}
{{- define "text" -}}
{{- if kindIs "slice" . }}{{ join "," . | quote }}
{{- else if kindIs "string" . }}{{ quote . }}
{{- else }}{{ toJson . | quote }}{{ end }}
{{- end }}

{{- /* The pod of a command: (list $ name arguments resources fields-of-the-container fields-of-the-pod) */}}
{{- define "pod" -}}
{{- $ := index . 0 -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ index . 1 }}
    image: {{ $.Values.image.repository }}:{{ $.Values.image.tag | default $.Chart.AppVersion }}
    args: {{ toJson (index . 2) }}
    env:
      {{- range $name, $value := $.Values.settings }}
      - name: DPPCA_{{ upper $name }}
        value: {{ include "text" $value }}
      {{- end }}
    envFrom:
      - secretRef: {name: {{ $.Values.existingSecret | default $.Release.Name }}}
    resources:
      {{- toYaml (index . 3) | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    {{- with $.Values.files }}
    volumeMounts:
      {{- range $path, $_ := . }}
      - {name: {{ base $path }}, mountPath: {{ $path }}, readOnly: true}
      {{- end }}
    {{- end }}
    {{- with index . 4 }}{{ . | nindent 4 }}{{ end }}
{{- with $.Values.files }}
volumes:
  {{- range $path, $volume := . }}
  - name: {{ base $path }}
    {{- toYaml $volume | nindent 4 }}
  {{- end }}
{{- end }}
{{- with $.Values.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}
