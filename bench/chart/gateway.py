"""Values of the gateway: its pods, how many, and how they are reached."""

from typing import Literal

from pydantic import Field, JsonValue

from bench.chart import kinds
from bench.chart.kinds import POD_SECURITY, SECURITY, Count, Labels, Port
from core.config.records import Record

_HEALTH: dict[str, JsonValue] = {"path": "/health", "port": "http"}


class Image(Record):
    """A container image."""

    repository: str = Field("forebay-gateway", min_length=1)
    """Name, with the registry where it is not the runtime's default."""
    tag: str = ""
    """Tag; empty is the chart's appVersion."""
    digest: str = Field("", pattern="^(sha256:[0-9a-f]{64})?$")
    """Digest, which wins over the tag."""
    pullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When it is pulled."""


class Probes(Record):
    """Probes of a container, each a whole Kubernetes probe on a named port. null leaves one out; another action takes
    httpGet: null."""

    startup: kinds.Probe | None = None
    """Until it succeeds once, the others wait."""
    readiness: kinds.Probe | None = None
    """Whether the pod takes traffic."""
    liveness: kinds.Probe | None = None
    """Whether the container is started anew. It must depend on nothing outside the container."""


class Service(Record):
    """The Service in front of the gateway."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Kind of Service."""
    port: Port = 80
    """Port of the OpenAI API."""
    annotations: Labels = {}
    """Annotations of the Service."""


class Rollout(Record):
    """How a new version replaces the old one."""

    maxSurge: Count = 1
    """Pods above the wanted number while rolling."""
    maxUnavailable: Count = 0
    """Pods below the wanted number while rolling."""


class Account(Record):
    """A ServiceAccount, which gets no token mounted."""

    create: bool = True
    """Make one."""
    name: str = ""
    """Its name; empty is made from the release's."""
    annotations: Labels = {}
    """Its annotations, such as for a cloud's workload identity."""


class Disruption(Record):
    """PodDisruptionBudget. maxUnavailable only: it never blocks the drain of a node, also at one replica."""

    enabled: bool = True
    """Make one."""
    maxUnavailable: Count = 1
    """Pods that may be evicted at one time."""


class HPA(Record):
    """HorizontalPodAutoscaler. The Deployment then names no number of replicas."""

    enabled: bool = False
    """Make one."""
    minReplicas: int = Field(2, ge=1)
    """Least pods."""
    maxReplicas: int = Field(10, ge=1)
    """Most pods."""
    targetCPUUtilizationPercentage: int | None = Field(70, ge=1)
    """CPU use to aim at, relative to the request; null leaves this metric out."""
    metrics: tuple[kinds.MetricSpec, ...] = ()
    """Further metrics."""
    behavior: kinds.HPABehavior = {
        "scaleDown": {
            "stabilizationWindowSeconds": 300,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        }
    }
    """How fast it scales. A pod that goes finishes its streams first, so slowly down."""


class KEDAFallback(Record):
    """What KEDA does without the metric."""

    failureThreshold: int = Field(3, ge=1)
    """Failed queries in a row before it applies."""
    replicas: int = Field(2, ge=1)
    """Pods then."""


class KEDA(Record):
    """KEDA ScaledObject on a Prometheus query. The Deployment then names no number of replicas."""

    enabled: bool = False
    """Make one; needs KEDA, and gateway.hpa.enabled false."""
    minReplicas: int = Field(2, ge=1)
    """Least pods. One at least: a gateway that is not there cannot count the request that should wake it."""
    maxReplicas: int = Field(10, ge=1)
    """Most pods."""
    serverAddress: str = ""
    """Address of Prometheus."""
    query: str = ""
    """Query; empty is the requests that run or wait in all gateways of this release."""
    threshold: float = Field(100, gt=0)
    """Value of the query for each pod."""
    pollingInterval: int = Field(15, ge=1)
    """Seconds between two queries."""
    cooldownPeriod: int = Field(300, ge=0)
    """Seconds without load before it scales down."""
    fallback: KEDAFallback = KEDAFallback()
    behavior: kinds.HPABehavior = {
        "scaleDown": {
            "stabilizationWindowSeconds": 300,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        }
    }
    """How fast it scales."""


class GatewayPods(Record):
    """The gateway."""

    image: Image = Image()
    replicas: int = Field(2, ge=1)
    """Pods, where neither HPA nor KEDA decides. Processes in each: config.gateway.workers."""
    resources: kinds.Resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    """A worker uses one core; the memory holds cache.max_bytes where cache.store is memory. No CPU limit on purpose:
    throttling shows as latency."""
    rollout: Rollout = Rollout()
    preStopSeconds: int = Field(15, ge=1)
    """How long a pod that ends still takes requests while load balancers learn that it goes."""
    terminationGracePeriodSeconds: int | None = Field(None, ge=1)
    """Seconds until a pod that ends is killed; null is preStopSeconds + config.gateway.drain + 15. Less than the sum of
    the two is refused."""
    probes: Probes = Probes(
        startup={"httpGet": _HEALTH, "periodSeconds": 2, "failureThreshold": 60},
        readiness={"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 2},
        liveness={"httpGet": _HEALTH, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    )
    env: tuple[kinds.EnvVar, ...] = ()
    """Environment variables: secrets that config names as ${NAME} (valueFrom.secretKeyRef), FOREBAY__SECTION__KEY,
    OTEL_*."""
    envFrom: tuple[kinds.EnvFromSource, ...] = ()
    """Whole Secrets or ConfigMaps as environment variables."""
    secretFiles: dict[str, str] = {}
    """Secrets as files, name to Secret: /etc/forebay/secrets/NAME/KEY for config's file references. A changed Secret
    reaches the gateway without a restart."""
    volumes: tuple[kinds.Volume, ...] = ()
    """Further volumes, such as for router.classifier or router.labels.path."""
    volumeMounts: tuple[kinds.VolumeMount, ...] = ()
    """Where they are mounted."""
    podLabels: Labels = {}
    """Labels of the pods."""
    podAnnotations: Labels = {}
    """Annotations of the pods."""
    nodeSelector: Labels = {}
    """Labels of nodes that may run them."""
    tolerations: tuple[kinds.Toleration, ...] = ()
    """Taints that they tolerate."""
    affinity: kinds.Affinity = {}
    """Affinity."""
    topologySpreadConstraints: tuple[kinds.Spread, ...] = (
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}},
        },
    )
    """How they are spread over nodes and zones."""
    priorityClassName: str = ""
    """Priority class."""
    podSecurityContext: kinds.PodSecurityContext = POD_SECURITY
    """Security context of the pods."""
    securityContext: kinds.SecurityContext = SECURITY
    """Security context of the container."""
    serviceAccount: Account = Account()
    service: Service = Service()
    pdb: Disruption = Disruption()
    hpa: HPA = HPA()
    keda: KEDA = KEDA()
