"""Types of values that somebody else defines: Kubernetes' own, and the configuration document."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, JsonValue, WithJsonSchema

# Keys that stand for a definition until `schema` puts it in: pydantic knows no definitions but its own.
KUBERNETES = "x-kubernetes"
DOCUMENT = "x-forebay"
Object = Mapping[str, JsonValue]

Affinity = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.Affinity"})]
EnvFromSource = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.EnvFromSource"})]
EnvVar = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.EnvVar"})]
HPABehavior = Annotated[Object, WithJsonSchema({KUBERNETES: "autoscaling.v2.HorizontalPodAutoscalerBehavior"})]
IngressTLS = Annotated[Object, WithJsonSchema({KUBERNETES: "networking.v1.IngressTLS"})]
MetricSpec = Annotated[Object, WithJsonSchema({KUBERNETES: "autoscaling.v2.MetricSpec"})]
PolicyPeer = Annotated[Object, WithJsonSchema({KUBERNETES: "networking.v1.NetworkPolicyPeer"})]
EgressRule = Annotated[Object, WithJsonSchema({KUBERNETES: "networking.v1.NetworkPolicyEgressRule"})]
PodSecurityContext = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.PodSecurityContext"})]
Probe = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.Probe"})]
Resources = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.ResourceRequirements"})]
SecretRef = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.LocalObjectReference"})]
SecurityContext = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.SecurityContext"})]
Spread = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.TopologySpreadConstraint"})]
Toleration = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.Toleration"})]
Volume = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.Volume"})]
VolumeMount = Annotated[Object, WithJsonSchema({KUBERNETES: "core.v1.VolumeMount"})]
Document = Annotated[Object, WithJsonSchema({DOCUMENT: "config"})]

Labels = Mapping[str, str]
# An integer, or an integer with a per cent sign.
Count = Annotated[
    int | str, WithJsonSchema({"anyOf": [{"type": "integer"}, {"pattern": "^[0-9]+%$", "type": "string"}]})
]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$")]
Port = Annotated[int, Field(ge=1, le=65535)]

# What every container of the chart runs with, where its values say nothing else.
SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
POD_SECURITY: dict[str, Any] = {
    "fsGroup": 10001,
    "runAsGroup": 10001,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
