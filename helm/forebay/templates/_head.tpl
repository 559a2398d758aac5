{{/* The head of the Ray cluster. It runs no engine: it offers no CPU and no GPU. */}}
{{- define "forebay.head" -}}
{{- $head := .Values.ray.head -}}
{{- $autoscaling := ne (include "forebay.autoscaling" .) "" -}}
rayStartParams:
  {{- include "forebay.rayPorts" . | nindent 2 }}
  dashboard-host: 0.0.0.0
  num-cpus: "0"
  num-gpus: "0"
template:
  metadata:
    labels:
      {{- include "forebay.raySelector" . | nindent 6 }}
      forebay/group: head
      {{- with $head.podLabels }}{{ toYaml . | nindent 6 }}{{ end }}
    {{- with $head.podAnnotations }}
    annotations: {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- with .Values.imagePullSecrets }}
    imagePullSecrets: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $head.serviceAccountName }}
    serviceAccountName: {{ . }}
    {{- end }}
    # The autoscaler in it asks Kubernetes for pods.
    automountServiceAccountToken: {{ $autoscaling }}
    enableServiceLinks: false
    {{- include "forebay.placement" $head | nindent 4 }}
    securityContext: {{- toYaml .Values.ray.podSecurityContext | nindent 6 }}
    containers:
      - name: ray-head
        image: {{ include "forebay.image" (list . .Values.ray.workers.image) | quote }}
        imagePullPolicy: {{ .Values.ray.workers.image.pullPolicy }}
        securityContext: {{- toYaml .Values.ray.securityContext | nindent 10 }}
        resources: {{- toYaml $head.resources | nindent 10 }}
        env:
          {{- include "forebay.rayEnvironment" . | nindent 10 }}
        ports:
          - {name: gcs-server, containerPort: 6379}
          - {name: dashboard, containerPort: 8265}
          - {name: client, containerPort: 10001}
          - {name: serve, containerPort: 8000}
          - {name: metrics, containerPort: 8080}
          - {name: agent, containerPort: 52365}
        {{- include "forebay.probes" $head.probes | nindent 8 }}
        volumeMounts:
          - {name: scratch, mountPath: /var/lib/forebay}
          - {name: tmp, mountPath: /tmp}
          - {name: shm, mountPath: /dev/shm}
    volumes:
      - {name: scratch, emptyDir: {}}
      - {name: tmp, emptyDir: {}}
      - name: shm
        emptyDir: {medium: Memory, sizeLimit: 2Gi}
{{- end -}}
