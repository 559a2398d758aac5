{{/* The Ray cluster: worker groups, and the pods of head and workers. */}}

{{/* The worker groups as a JSON list: name, tier, replicas, and the engine's parallelism. */}}
{{- define "forebay.groups" -}}
{{- $groups := list -}}
{{- range $name, $tier := include "forebay.ownTiers" . | fromJson -}}
{{- $engine := $tier.engine | default dict -}}
{{- $roles := dict "engine" $tier -}}
{{- if $tier.disaggregation -}}
{{- $roles = dict "prefill" ($tier.disaggregation.prefill | default dict) "decode" ($tier.disaggregation.decode | default dict) -}}
{{- end -}}
{{- range $role, $part := $roles -}}
{{- $own := $part.engine | default dict -}}
{{- $tensor := int (coalesce $own.tensor_parallel_size $engine.tensor_parallel_size 1) -}}
{{- $pipeline := int (coalesce $own.pipeline_parallel_size $engine.pipeline_parallel_size 1) -}}
{{- $replicas := $part.replicas | default dict -}}
{{- $least := ternary (int $replicas.min) 1 (hasKey $replicas "min") -}}
{{- $most := int (coalesce $replicas.max 1) -}}
{{- $groupName := ternary $name (printf "%s-%s" $name $role) (eq $role "engine") -}}
{{- $groups = append $groups (dict "name" $groupName "tier" $name "role" $role "tensor" $tensor "pipeline" $pipeline "resource" (printf "forebay-%s-%s" $role (regexReplaceAll "[^A-Za-z0-9]+" $tier.model "-")) "min" $least "max" $most "longest" (include "forebay.longestOf" $tier | int)) -}}
{{- end -}}
{{- end -}}
{{- toJson $groups -}}
{{- end -}}

{{/* Whether a group grows and shrinks, so that Ray's autoscaler is needed. */}}
{{- define "forebay.autoscaling" -}}
{{- range $group := include "forebay.groups" . | fromJsonArray -}}
{{- if lt (int $group.min) (int $group.max) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* ray.workers with what ray.groups says of one group, as JSON. Called with (list $ "group"). */}}
{{- define "forebay.workers" -}}
{{- $ := index . 0 -}}
{{- $found := deepCopy $.Values.ray.workers -}}
{{- range $key, $value := get $.Values.ray.groups (index . 1) | default dict -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $found $key)) -}}
{{- $_ := set $found $key (mergeOverwrite (deepCopy (get $found $key)) $value) -}}
{{- else -}}
{{- $_ := set $found $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Whole CPUs of a quantity, one at least. */}}
{{- define "forebay.cpus" -}}
{{- $text := toString . -}}
{{- if hasSuffix "m" $text -}}
{{- max 1 (div (trimSuffix "m" $text | int) 1000) -}}
{{- else -}}
{{- max 1 (floor (float64 $text) | int) -}}
{{- end -}}
{{- end -}}

{{/* Environment of every Ray container: caches in the scratch volume, nothing sent to vendors. */}}
{{- define "forebay.rayEnvironment" -}}
- {name: HOME, value: /var/lib/forebay}
- {name: USER, value: forebay}
- {name: HF_HOME, value: /var/lib/forebay/huggingface}
- {name: XDG_CACHE_HOME, value: /var/lib/forebay/cache}
- {name: TRITON_CACHE_DIR, value: /var/lib/forebay/triton}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /var/lib/forebay/inductor}
- {name: VLLM_CACHE_ROOT, value: /var/lib/forebay/vllm}
- {name: FLASHINFER_WORKSPACE_BASE, value: /var/lib/forebay}
- {name: CUDA_CACHE_PATH, value: /var/lib/forebay/cuda}
- {name: NUMBA_CACHE_DIR, value: /var/lib/forebay/numba}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: FOREBAY_PIN_GROUPS, value: "1"}
{{- end -}}

{{/* Parameters of `ray start` that head and workers share. Every port is fixed, so that a NetworkPolicy can name it. */}}
{{- define "forebay.rayPorts" -}}
metrics-export-port: "8080"
dashboard-agent-listen-port: "52365"
dashboard-agent-grpc-port: "52366"
runtime-env-agent-port: "52367"
node-manager-port: "6380"
object-manager-port: "6381"
min-worker-port: "10002"
max-worker-port: "19999"
{{- end -}}

{{/* Probes of a container. Called with the probes. */}}
{{- define "forebay.probes" -}}
{{- range $name := list "startup" "readiness" "liveness" -}}
{{- with get $ $name }}
{{ $name }}Probe: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where a pod runs. Called with values that have nodeSelector, tolerations, affinity and priorityClassName. */}}
{{- define "forebay.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end -}}
{{- end -}}

{{/* One worker group. Called with (dict "root" $ "group" group). */}}
{{- define "forebay.workerGroup" -}}
{{- $ := .root -}}
{{- $group := .group -}}
{{- $workers := include "forebay.workers" (list $ $group.name) | fromJson -}}
{{- $gpus := ternary (min 8 $group.tensor) (int $workers.gpusPerPod) (kindIs "invalid" $workers.gpusPerPod) -}}
{{- $spans := mul $group.tensor $group.pipeline -}}
{{- $hosts := 1 -}}
{{- if $gpus }}{{ $hosts = div (add $spans (sub $gpus 1)) $gpus }}{{ end -}}
{{- $resources := deepCopy $workers.resources -}}
{{- range $kind := list "requests" "limits" -}}
{{- $found := get $resources $kind | default dict -}}
{{- if $gpus }}{{ $_ := set $found $workers.gpuResource (toString $gpus) }}{{ end -}}
{{- $_ := set $resources $kind $found -}}
{{- end -}}
{{- $cpus := include "forebay.cpus" (coalesce $resources.requests.cpu $resources.limits.cpu "1") -}}
{{- $least := add $workers.preStopSeconds $group.longest -}}
{{- $grace := $workers.terminationGracePeriodSeconds | default (add $least 60) -}}
{{- if le (int $grace) (int $least) -}}
{{- fail (printf "ray.workers.terminationGracePeriodSeconds: %d cuts answers of %s off; legal: above %d (preStopSeconds %d + timeout.total %d)" (int $grace) $group.name $least (int $workers.preStopSeconds) (int $group.longest)) -}}
{{- end -}}
groupName: {{ $group.name }}
{{- if eq (int $group.min) (int $group.max) }}
replicas: {{ $group.min }}
{{- end }}
minReplicas: {{ $group.min }}
maxReplicas: {{ $group.max }}
numOfHosts: {{ $hosts }}
rayStartParams:
  {{- include "forebay.rayPorts" $ | nindent 2 }}
  num-cpus: {{ $cpus | quote }}
  num-gpus: {{ $gpus | toString | quote }}
  # Only engines of this group may take these pods.
  resources: {{ printf "\"{\\\"%s\\\": %d}\"" $group.resource (max 1 $gpus) | squote }}
template:
  metadata:
    labels:
      {{- include "forebay.raySelector" $ | nindent 6 }}
      forebay/group: {{ $group.name }}
      {{- with $workers.podLabels }}{{ toYaml . | nindent 6 }}{{ end }}
    {{- with $workers.podAnnotations }}
    annotations: {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- with $.Values.imagePullSecrets }}
    imagePullSecrets: {{- toYaml . | nindent 6 }}
    {{- end }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    terminationGracePeriodSeconds: {{ $grace }}
    {{- with $workers.runtimeClassName }}
    runtimeClassName: {{ . }}
    {{- end }}
    {{- include "forebay.placement" $workers | nindent 4 }}
    securityContext: {{- toYaml $.Values.ray.podSecurityContext | nindent 6 }}
    containers:
      - name: ray-worker
        image: {{ include "forebay.image" (list $ $workers.image) | quote }}
        imagePullPolicy: {{ $workers.image.pullPolicy }}
        securityContext: {{- toYaml $.Values.ray.securityContext | nindent 10 }}
        resources: {{- toYaml $resources | nindent 10 }}
        env:
          {{- include "forebay.rayEnvironment" $ | nindent 10 }}
          {{- with $workers.env }}{{ toYaml . | nindent 10 }}{{ end }}
        {{- with $workers.envFrom }}
        envFrom: {{- toYaml . | nindent 10 }}
        {{- end }}
        ports:
          - {name: serve, containerPort: 8000}
          - {name: metrics, containerPort: 8080}
          - {name: agent, containerPort: 52365}
        lifecycle:
          preStop:
            sleep: {seconds: {{ $workers.preStopSeconds }}}
        {{- include "forebay.probes" $workers.probes | nindent 8 }}
        volumeMounts:
          - {name: scratch, mountPath: /var/lib/forebay}
          - {name: tmp, mountPath: /tmp}
          - {name: shm, mountPath: /dev/shm}
          {{- with $workers.volumeMounts }}{{ toYaml . | nindent 10 }}{{ end }}
    volumes:
      - name: scratch
        {{- if $workers.modelCacheClaim }}
        persistentVolumeClaim: {claimName: {{ $workers.modelCacheClaim }}}
        {{- else }}
        emptyDir: {}
        {{- end }}
      - {name: tmp, emptyDir: {}}
      - name: shm
        emptyDir: {medium: Memory, sizeLimit: {{ $workers.sharedMemory }}}
      {{- with $workers.volumes }}{{ toYaml . | nindent 6 }}{{ end }}
{{- end -}}
