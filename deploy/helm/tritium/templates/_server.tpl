{{/* The flags that users give, as a list. */}}
{{- define "tritium.given" -}}
{{- concat (.Values.image.serverArgs | default list) (.Values.serverArgs | default list) | toJson -}}
{{- end -}}

{{/* Whether a flag that users give names a model repository; empty if none does. */}}
{{- define "tritium.namesRepository" -}}
{{- range (include "tritium.given" . | fromJsonArray) -}}
{{- if regexMatch "^--model-(repository|store|repository-file)([= ]|$)" . }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* Where models are mounted; empty if they are not. */}}
{{- define "tritium.mount" -}}
{{- if or .Values.image.modelRepositoryServer .Values.modelRepository.pvc.claimName -}}
{{- .Values.modelRepository.mountPath -}}
{{- end -}}
{{- end -}}

{{/* The arguments of the server's container. */}}
{{- define "tritium.args" -}}
{{- $secret := .Values.modelRepository.secret -}}
- {{ .Values.image.serverCommand }}
{{- if not (include "tritium.namesRepository" .) }}
{{- with coalesce (include "tritium.mount" .) .Values.image.modelRepositoryPath }}
- {{ printf "--model-repository=%s" . | quote }}
{{- end }}
{{- with $secret.repositories }}
- {{ printf "--model-repository-file=/etc/tritium/storage/%s" . | quote }}
{{- end }}
{{- end }}
- --model-cache-directory=/var/cache/tritium/models
- --environment-cache=/var/cache/tritium/environments
- --drain-delay-secs={{ .Values.drain.delaySecs }}
- --exit-timeout-secs={{ .Values.drain.exitTimeoutSecs }}
{{- if .Values.fleet.enabled }}
- --model-control-mode=explicit
- --await-fleet=true
{{- end }}
{{- if .Values.openai.enabled }}
- --openai-port=9000
{{- end }}
{{- if .Values.tls.secretName }}
{{- range $listener := list "http" "grpc" "metrics" }}
{{- if get $.Values.tls $listener }}
- --{{ $listener }}-use-ssl=true
- --{{ $listener }}-server-cert=/etc/tritium/tls/tls.crt
- --{{ $listener }}-server-key=/etc/tritium/tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.auth.secretName }}
- --auth-file=/etc/tritium/auth/{{ .Values.auth.key }}
{{- end }}
{{- if not (kindIs "invalid" .Values.image.strictModelConfig) }}
- --strict-model-config={{ .Values.image.strictModelConfig }}
{{- end }}
{{- if not (kindIs "invalid" .Values.image.logVerboseLevel) }}
- --log-verbose={{ .Values.image.logVerboseLevel }}
{{- end }}
{{- if not (kindIs "invalid" .Values.image.allowGPUMetrics) }}
- --allow-gpu-metrics={{ .Values.image.allowGPUMetrics }}
{{- end }}
{{- range (include "tritium.given" . | fromJsonArray) }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The arguments of the fleet's controller. */}}
{{- define "tritium.fleetArgs" -}}
- tritium
- fleet
- run
- --file=/etc/tritium/fleet/fleet.yaml
# One that starts again under its name goes on at once.
- --name={{ include "tritium.fullname" . }}-fleet
- --metrics-address=0.0.0.0:8005
{{- if .Values.fleet.keySecret.name }}
- --key-file=/etc/tritium/key/{{ .Values.fleet.keySecret.key }}
{{- end }}
{{- end -}}

{{/* The fleet's file. Unless it says where servers are, they are those behind the headless Service. */}}
{{- define "tritium.fleetWanted" -}}
{{- $wanted := deepCopy .Values.fleet.wanted -}}
{{- if not (or (hasKey $wanted "replicas") (hasKey $wanted "discovery")) -}}
{{- $service := printf "%s-headless" (include "tritium.fullname" .) -}}
{{- $_ := set $wanted "discovery" (dict "endpointslices" (dict "service" $service)) -}}
{{- end -}}
{{- toYaml $wanted -}}
{{- end -}}

{{- define "tritium.env" -}}
{{- $secret := .Values.modelRepository.secret -}}
- name: TRITIUM_REPLICA_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: HOME
  value: /tmp
{{- with $secret.credentials }}
- name: TRITON_CLOUD_CREDENTIAL_PATH
  value: /etc/tritium/storage/{{ . }}
{{- end }}
{{- with $secret.awsCredentials }}
- name: AWS_SHARED_CREDENTIALS_FILE
  value: /etc/tritium/storage/{{ . }}
{{- end }}
{{- with $secret.googleCredentials }}
- name: GOOGLE_APPLICATION_CREDENTIALS
  value: /etc/tritium/storage/{{ . }}
{{- end }}
{{- with .Values.modelRepository.awsRegion }}
- name: AWS_DEFAULT_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .Values.modelRepository.awsProfile }}
- name: AWS_PROFILE
  value: {{ . | quote }}
{{- end }}
{{- with .Values.image.ldPreloadPath }}
- name: LD_PRELOAD
  value: {{ . | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tritium.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /var/cache/tritium}
{{- with include "tritium.mount" . }}
- name: models
  mountPath: {{ . }}
  readOnly: true
  {{- with $.Values.modelRepository.pvc.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}
{{- if .Values.modelRepository.secret.name }}
- {name: storage, mountPath: /etc/tritium/storage, readOnly: true}
{{- end }}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/tritium/tls, readOnly: true}
{{- end }}
{{- if .Values.auth.secretName }}
- {name: auth, mountPath: /etc/tritium/auth, readOnly: true}
{{- end }}
{{- if .Values.shm.sizeLimit }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tritium.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmp.sizeLimit }}}
- name: cache
  {{- if .Values.cache.claimName }}
  persistentVolumeClaim: {claimName: {{ .Values.cache.claimName }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ .Values.cache.sizeLimit }}}
  {{- end }}
{{- if .Values.image.modelRepositoryServer }}
- name: models
  nfs:
    server: {{ .Values.image.modelRepositoryServer }}
    path: {{ .Values.image.modelRepositoryPath }}
    readOnly: true
{{- else if .Values.modelRepository.pvc.claimName }}
- name: models
  persistentVolumeClaim: {claimName: {{ .Values.modelRepository.pvc.claimName }}, readOnly: true}
{{- end }}
{{- with .Values.modelRepository.secret.name }}
- name: storage
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.auth.secretName }}
- name: auth
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.shm.sizeLimit }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ . }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* How long a pod may take to end: delay, exit timeout, 7 s for workers and 5 of room; 60 at least. */}}
{{- define "tritium.neededGrace" -}}
{{- $drain := .Values.drain -}}
{{- max 60 (add (ceil $drain.delaySecs) (ceil $drain.exitTimeoutSecs) $drain.preStopSleepSecs 12) -}}
{{- end -}}

{{- define "tritium.grace" -}}
{{- default (include "tritium.neededGrace" .) .Values.drain.terminationGracePeriodSeconds | int -}}
{{- end -}}

{{- define "tritium.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if and .root.Values.tls.secretName .root.Values.tls.http }}
  scheme: HTTPS
  {{- end }}
{{ toYaml .numbers }}
{{- end -}}

{{- define "tritium.resources" -}}
{{- $own := deepCopy (.Values.resources | default dict) -}}
{{- with .Values.image.numGpus -}}
{{- $limits := get $own "limits" | default dict -}}
{{- $_ := set $limits $.Values.image.gpuResource (int .) -}}
{{- $_ := set $own "limits" $limits -}}
{{- end -}}
{{- toYaml $own -}}
{{- end -}}
