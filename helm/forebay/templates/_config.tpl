{{/* The configuration document: what the gateway reads, and what is handed to Ray Serve. */}}

{{/* The tiers of config, or of files/tiers.yaml, as JSON. */}}
{{- define "forebay.tiers" -}}
{{- $found := dict -}}
{{- range $name, $tier := .Values.config.tiers -}}
{{- if $tier }}{{ $_ := set $found $name $tier }}{{ end -}}
{{- end -}}
{{- if not $found -}}
{{- $found = (.Files.Get "files/tiers.yaml" | fromYaml).tiers -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The tiers that are run here, as JSON. */}}
{{- define "forebay.ownTiers" -}}
{{- $found := dict -}}
{{- range $name, $tier := include "forebay.tiers" . | fromJson -}}
{{- if not $tier.urls }}{{ $_ := set $found $name $tier }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Seconds that the longest answer of a tier may take. Called with the tier. */}}
{{- define "forebay.longestOf" -}}
{{- $timeout := .timeout | default dict -}}
{{- include "forebay.seconds" ($timeout.total | default "10m") -}}
{{- end -}}

{{/* Seconds that the longest answer of any tier may take. */}}
{{- define "forebay.longest" -}}
{{- $longest := 0 -}}
{{- range $name, $tier := include "forebay.tiers" . | fromJson -}}
{{- $longest = max $longest (include "forebay.longestOf" $tier | int) -}}
{{- end -}}
{{- $longest -}}
{{- end -}}

{{/* Seconds that the gateway lets streams finish: as long as the longest may take, where config says nothing else. */}}
{{- define "forebay.drain" -}}
{{- $gateway := .Values.config.gateway | default dict -}}
{{- if $gateway.drain -}}
{{- include "forebay.seconds" $gateway.drain -}}
{{- else -}}
{{- include "forebay.longest" . -}}
{{- end -}}
{{- end -}}

{{/* The address of the chart's Valkey; its password is a reference. */}}
{{- define "forebay.storeAddress" -}}
{{- $password := ternary ":${FOREBAY_STORE_PASSWORD}@" "" (not (empty .Values.valkey.existingSecret)) -}}
{{- printf "redis://%s%s-valkey:6379/0" $password (include "forebay.fullname" .) -}}
{{- end -}}

{{/* The gateway's document, as JSON. */}}
{{- define "forebay.document" -}}
{{- $config := deepCopy .Values.config -}}
{{- $tiers := include "forebay.tiers" . | fromJson -}}
{{- range $name, $tier := $tiers -}}
{{- if not $tier.urls -}}
{{- $_ := set $tier "urls" (list (printf "http://%s-serve-svc:8000/%s" (include "forebay.fullname" $) $name)) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "tiers" $tiers -}}
{{- $gateway := $config.gateway | default dict -}}
{{- $drain := printf "%ss" (include "forebay.drain" .) -}}
{{- range $key, $value := dict "host" "0.0.0.0" "port" 8080 "metrics_port" 9090 "drain" $drain -}}
{{- if not (hasKey $gateway $key) }}{{ $_ := set $gateway $key $value }}{{ end -}}
{{- end -}}
{{- $_ := set $config "gateway" $gateway -}}
{{- if .Values.valkey.enabled -}}
{{- range $section := list "cache" "auth" -}}
{{- $found := get $config $section | default dict -}}
{{- if not (hasKey $found "store") }}{{ $_ := set $found "store" (include "forebay.storeAddress" $) }}{{ end -}}
{{- $_ := set $config $section $found -}}
{{- end -}}
{{- end -}}
{{- toJson $config -}}
{{- end -}}

{{/* Ray Serve's configuration, as JSON: one application per tier, its arguments only what engines depend on. */}}
{{- define "forebay.serve" -}}
{{- $applications := list -}}
{{- range $name, $tier := include "forebay.ownTiers" . | fromJson -}}
{{- $part := pick $tier "model" "source" "adapters" "engine" "replicas" "disaggregation" -}}
{{- $needed := ternary (list "total" "first_token") (list "total") (not (empty $tier.disaggregation)) -}}
{{- $timeout := dict -}}
{{- range $key, $value := $tier.timeout -}}
{{- if has $key $needed }}{{ $_ := set $timeout $key $value }}{{ end -}}
{{- end -}}
{{- if $timeout }}{{ $_ := set $part "timeout" $timeout }}{{ end -}}
{{- $arguments := dict "tier" $name "config" (dict "tiers" (dict $name $part)) -}}
{{- $application := dict "name" $name "route_prefix" (printf "/%s" $name) "import_path" "deploy.app:build" "args" $arguments -}}
{{- $applications = append $applications $application -}}
{{- end -}}
{{- $http := dict "host" "0.0.0.0" "port" 8000 "keep_alive_timeout_s" 300 -}}
{{- dict "proxy_location" "EveryNode" "http_options" $http "applications" $applications | toJson -}}
{{- end -}}

{{/* Ports outside that the gateway connects to, as a JSON list: of the urls of tiers, and of stores. */}}
{{- define "forebay.outsidePorts" -}}
{{- $ports := dict -}}
{{- range $name, $tier := include "forebay.tiers" . | fromJson -}}
{{- range $url := $tier.urls -}}
{{- $parts := urlParse $url -}}
{{- $port := regexFind ":[0-9]+$" $parts.host | trimPrefix ":" | default (ternary "443" "80" (eq $parts.scheme "https")) -}}
{{- $_ := set $ports $port true -}}
{{- end -}}
{{- end -}}
{{- range $section := list "cache" "auth" -}}
{{- $store := (get $.Values.config $section | default dict).store | default "memory" -}}
{{- if regexMatch "^redis" $store -}}
{{- $host := regexFind "://[^/?]+" $store -}}
{{- $_ := set $ports (regexFind ":[0-9]+$" (regexReplaceAll "^://([^@]*@)?" $host "") | trimPrefix ":" | default "6379") true -}}
{{- else if ne $store "memory" -}}
{{- $_ := set $ports "6379" true -}}
{{- end -}}
{{- end -}}
{{- keys $ports | sortAlpha | toJson -}}
{{- end -}}
