{{/* Parts of NetworkPolicies. */}}

{{- define "forebay.dns" -}}
- to:
    - namespaceSelector: {}
      podSelector:
        matchLabels: {k8s-app: kube-dns}
    # DNS caches on the node.
    - ipBlock: {cidr: 169.254.0.0/16}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{- define "forebay.toValkey" -}}
- to:
    - podSelector:
        matchLabels: {{- include "forebay.selector" (list . "valkey") | nindent 10 }}
  ports:
    - {port: 6379}
{{- end -}}

{{/* Between pods of one Ray cluster. Ephemeral ports carry tensors (NCCL, UCX) and the meeting of an engine's processes. */}}
{{- define "forebay.clusterPorts" -}}
- {port: 6379}
- {port: 6380, endPort: 6381}
- {port: 8000}
- {port: 8080}
- {port: 8265}
- {port: 10001, endPort: 19999}
{{- if contains "-decode" (include "forebay.groups" .) }}
# Side channels over which prefill and decode replicas agree on KV blocks (NIXL): each replica adds its rank.
- {port: 20000, endPort: 20999}
- {port: 22000, endPort: 22999}
{{- end }}
- {port: 32768, endPort: 60999}
{{- end -}}
