{{/* What a schema cannot say. Every fault names its value. */}}
{{- define "forebay.check" -}}
{{- $gateway := .Values.gateway -}}
{{- $document := include "forebay.document" . | fromJson -}}
{{- $drain := include "forebay.drain" . | int -}}
{{- $least := add $gateway.preStopSeconds $drain -}}
{{- if $gateway.terminationGracePeriodSeconds -}}
{{- if le (int $gateway.terminationGracePeriodSeconds) (int $least) -}}
{{- fail (printf "gateway.terminationGracePeriodSeconds: %d cuts streams off; legal: above %d (gateway.preStopSeconds %d + config.gateway.drain %d)" (int $gateway.terminationGracePeriodSeconds) $least (int $gateway.preStopSeconds) $drain) -}}
{{- end -}}
{{- end -}}
{{- if has $document.gateway.host (list "127.0.0.1" "localhost" "::1") -}}
{{- fail (printf "config.gateway.host: nothing outside the pod reaches %s; legal: 0.0.0.0, or leave it out" $document.gateway.host) -}}
{{- end -}}
{{- if eq (int $document.gateway.port) 0 -}}
{{- fail "config.gateway.port: a Service needs to know it; legal: 1024 to 65535, or leave it out" -}}
{{- end -}}
{{- if lt (int $document.gateway.port) 1024 -}}
{{- fail (printf "config.gateway.port: the container is not root and cannot take %d; legal: 1024 to 65535 (gateway.service.port is what clients see)" (int $document.gateway.port)) -}}
{{- end -}}
{{- if and $gateway.hpa.enabled $gateway.keda.enabled -}}
{{- fail "gateway.keda.enabled: gateway.hpa.enabled is true too; legal: one of the two" -}}
{{- end -}}
{{- range $name := list "hpa" "keda" -}}
{{- $scaler := get $gateway $name -}}
{{- if and $scaler.enabled (gt (int $scaler.minReplicas) (int $scaler.maxReplicas)) -}}
{{- fail (printf "gateway.%s.minReplicas: %d is above maxReplicas (%d)" $name (int $scaler.minReplicas) (int $scaler.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and $gateway.keda.enabled (not $gateway.keda.serverAddress) -}}
{{- fail "gateway.keda.serverAddress: missing; give the address of Prometheus" -}}
{{- end -}}
{{- if and $gateway.hpa.enabled (not $gateway.hpa.targetCPUUtilizationPercentage) (not $gateway.hpa.metrics) -}}
{{- fail "gateway.hpa.metrics: missing; give one, or targetCPUUtilizationPercentage" -}}
{{- end -}}
{{- $several := or $gateway.hpa.enabled $gateway.keda.enabled (gt (int $gateway.replicas) 1) -}}
{{- $auth := $document.auth | default dict -}}
{{- if and $several (eq ($auth.store | default "memory") "memory") -}}
{{- range $key := $auth.keys -}}
{{- range $limit := list "concurrency" "requests_per_minute" "tokens_per_minute" "monthly_budget" -}}
{{- if get $key $limit -}}
{{- fail (printf "config.auth.store: several gateways count the limits of %q apart in memory; legal with limits: redis://…, valkey.enabled true, or gateway.replicas 1" $key.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts: missing; give one host at least" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: missing; give one Gateway at least" -}}
{{- end -}}
{{- $fault := .Values.ray.gcsFaultTolerance -}}
{{- if and $fault.enabled (not $fault.address) (not .Values.valkey.enabled) -}}
{{- fail "ray.gcsFaultTolerance.address: missing; give one, or set valkey.enabled" -}}
{{- end -}}
{{- $upgrade := .Values.ray.upgrade.type -}}
{{- if and (eq $upgrade "NewClusterWithIncrementalUpgrade") (not .Values.ray.incrementalUpgrade.gatewayClassName) -}}
{{- fail "ray.incrementalUpgrade.gatewayClassName: missing; ray.upgrade.type NewClusterWithIncrementalUpgrade moves traffic by a Gateway of this class" -}}
{{- end -}}
{{- $known := dict -}}
{{- range $group := include "forebay.groups" . | fromJsonArray }}{{ $_ := set $known $group.name true }}{{ end -}}
{{- range $name, $group := .Values.ray.groups -}}
{{- if and $group (not (hasKey $known $name)) -}}
{{- fail (printf "ray.groups.%s: config runs no such group here; legal: %s" $name (keys $known | sortAlpha | join ", " | default "none, since every tier has urls")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
