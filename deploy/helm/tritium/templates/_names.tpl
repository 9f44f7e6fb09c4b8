{{- define "tritium.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tritium.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "tritium.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tritium.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What the pods of the servers are selected by. */}}
{{- define "tritium.selector" -}}
app.kubernetes.io/name: {{ include "tritium.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "tritium.fleetSelector" -}}
app.kubernetes.io/name: {{ include "tritium.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: fleet
{{- end -}}

{{- define "tritium.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "tritium.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "tritium.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tritium.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tritium.image" -}}
{{- with .Values.image -}}
{{- $name := .imageName -}}
{{- if not $name -}}
{{- $name = printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- with .registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- end -}}
{{- with .digest }}{{ $name = printf "%s@%s" $name . }}{{ end -}}
{{- $name -}}
{{- end -}}
{{- end -}}
