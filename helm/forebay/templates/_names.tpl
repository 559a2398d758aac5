{{/* Names, labels and images. */}}

{{- define "forebay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The beginning of all names. 40 characters: KubeRay adds to the name of a RayService. */}}
{{- define "forebay.fullname" -}}
{{- $name := include "forebay.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "forebay.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of an object. Called with (list $ "component"). */}}
{{- define "forebay.labels" -}}
{{- $ := index . 0 -}}
helm.sh/chart: {{ include "forebay.chart" $ }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
app.kubernetes.io/part-of: forebay
{{ include "forebay.selector" . }}
{{- end -}}

{{/* Labels that select pods of a component. Called with (list $ "component"). */}}
{{- define "forebay.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "forebay.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of Ray pods. KubeRay selects pods by an app.kubernetes.io/name of its own, so they have none of ours. */}}
{{- define "forebay.raySelector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: engines
{{- end -}}

{{/* Called with (list $ image). */}}
{{- define "forebay.image" -}}
{{- $ := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "forebay.serviceAccountName" -}}
{{- if .Values.gateway.serviceAccount.create -}}
{{- default (include "forebay.fullname" .) .Values.gateway.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.gateway.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* YAML whose numbers every reader of YAML takes for numbers: "1e-05" is a text to some, "1.0e-05" to none. */}}
{{- define "forebay.yaml" -}}
{{- regexReplaceAll "(?m)^([^#\"'\\n]*(?:: |- ))(-?[0-9])(e[-+]?[0-9]+)$" (toYaml .) "${1}${2}.0${3}" -}}
{{- end -}}

{{/* Seconds of a duration such as 250ms or 10m, rounded up. */}}
{{- define "forebay.seconds" -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $seconds := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- mulf (float64 $number) (get $seconds (trimPrefix $number .)) | ceil | int -}}
{{- end -}}
