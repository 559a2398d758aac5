"""Values of the tiers that the chart runs: one RayService, a worker group per replica group."""

from typing import Literal

from pydantic import Field, JsonValue

from bench.chart import kinds
from bench.chart.gateway import Image, Probes
from bench.chart.kinds import POD_SECURITY, SECURITY, Labels, Quantity
from core.config.records import Record

_GCS: dict[str, JsonValue] = {"path": "/api/gcs_healthz", "port": "dashboard"}
_RAYLET: dict[str, JsonValue] = {"path": "/api/local_raylet_healthz", "port": "agent"}

_SERVE: dict[str, JsonValue] = {"path": "/-/healthz", "port": "serve"}


class Upgrade(Record):
    """What KubeRay does when the pods of the cluster change. A change of Serve's configuration alone is made in
    place."""

    type: Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"] = "NewCluster"
    """NewCluster: a second cluster takes over when it is ready, so its GPUs must be free; None: no change until the
    RayService is made anew."""
    deletionDelaySeconds: int | None = Field(None, ge=0)
    """How long the old cluster stays after the new one has taken over; null is the longest answer of a tier."""


class IncrementalUpgrade(Record):
    """Steps of NewClusterWithIncrementalUpgrade, which needs Gateway API."""

    gatewayClassName: str = ""
    """Class of the Gateway that moves the traffic."""
    maxSurgePercent: int = Field(100, ge=0, le=100)
    """Capacity of the new cluster in one step, in per cent."""
    stepSizePercent: int = Field(10, ge=1, le=100)
    """Traffic moved in one step, in per cent."""
    intervalSeconds: int = Field(60, ge=1)
    """Seconds between two steps."""


class FaultTolerance(Record):
    """Ray's state in Redis, so that engines live on when the head pod dies."""

    enabled: bool = False
    """Keep it there; needs valkey.enabled or an address."""
    address: str = ""
    """redis://host:port of an own server; empty is the chart's Valkey."""
    existingSecret: str = ""
    """Secret with the password; empty is the one of valkey.existingSecret with the chart's Valkey, else none."""
    secretKey: str = "password"  # the name of a key
    """Key in it."""


class Autoscaler(Record):
    """Ray's autoscaler, beside the head where a tier's replicas.max is above its replicas.min."""

    idleTimeoutSeconds: int = Field(300, ge=1)
    """How long a worker pod stays without a replica."""
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] = "Default"
    """How fast worker pods are added."""
    resources: kinds.Resources = {
        "requests": {"cpu": "200m", "memory": "512Mi"},
        "limits": {"cpu": "500m", "memory": "1Gi"},
    }
    """Its resources."""


class Head(Record):
    """The head pod: it schedules and runs no engine."""

    resources: kinds.Resources = {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}
    """Its resources."""
    probes: Probes = Probes(
        startup={"httpGet": _GCS, "periodSeconds": 5, "failureThreshold": 60},
        readiness={"httpGet": _GCS, "periodSeconds": 5, "timeoutSeconds": 5},
        liveness={"httpGet": _RAYLET, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 12},
    )
    podLabels: Labels = {}
    """Labels of the pod."""
    podAnnotations: Labels = {}
    """Annotations of the pod."""
    nodeSelector: Labels = {}
    """Labels of nodes that may run it."""
    tolerations: tuple[kinds.Toleration, ...] = ()
    """Taints that it tolerates."""
    affinity: kinds.Affinity = {}
    """Affinity."""
    priorityClassName: str = ""
    """Priority class."""
    serviceAccountName: str = ""
    """Account of the pod; empty is the one KubeRay makes for its autoscaler, or the namespace's default."""


class Workers(Record):
    """Worker pods. One pod holds one engine, or one pipeline stage of it."""

    image: Image = Image(repository="forebay-engine")
    gpuResource: str = Field("nvidia.com/gpu", min_length=1)
    """Resource that counts GPUs."""
    gpusPerPod: int | None = Field(None, ge=0)
    """GPUs of one pod; null is tensor_parallel_size, at most 8. 0 is for engines on the CPU."""
    resources: kinds.Resources = {"requests": {"cpu": "8", "memory": "48Gi"}, "limits": {"memory": "64Gi"}}
    """CPU and memory of one pod; GPUs are added."""
    sharedMemory: Quantity = "16Gi"
    """Size of /dev/shm, part of the pod's memory."""
    terminationGracePeriodSeconds: int | None = Field(None, ge=1)
    """Seconds until a pod that ends is killed; null is preStopSeconds + the tier's timeout.total + 60. Less than the
    sum of the two is refused."""
    preStopSeconds: int = Field(15, ge=1)
    """How long a pod that ends still takes requests while the gateway learns that it goes."""
    probes: Probes = Probes(
        startup={"httpGet": _RAYLET, "periodSeconds": 5, "failureThreshold": 360},
        readiness={"httpGet": _SERVE, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2},
        liveness={"httpGet": _RAYLET, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 12},
    )
    env: tuple[kinds.EnvVar, ...] = ()
    """Environment variables, such as HF_TOKEN from a Secret."""
    envFrom: tuple[kinds.EnvFromSource, ...] = ()
    """Whole Secrets or ConfigMaps as environment variables."""
    volumes: tuple[kinds.Volume, ...] = ()
    """Further volumes, such as weights."""
    volumeMounts: tuple[kinds.VolumeMount, ...] = ()
    """Where they are mounted."""
    modelCacheClaim: str = ""
    """PersistentVolumeClaim for downloaded weights and compiled kernels; empty is the pod's own scratch space."""
    runtimeClassName: str = ""
    """Runtime class, where GPUs need one."""
    podLabels: Labels = {}
    """Labels of the pods."""
    podAnnotations: Labels = {}
    """Annotations of the pods."""
    nodeSelector: Labels = {}
    """Labels of nodes that may run them."""
    tolerations: tuple[kinds.Toleration, ...] = (
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    )
    """Taints that they tolerate."""
    affinity: kinds.Affinity = {}
    """Affinity."""
    priorityClassName: str = ""
    """Priority class."""


class Groups(Record):
    """What differs from ray.workers, by worker group. -prefill and -decode are of a tier with disaggregation."""

    small: Workers | None = None
    """The tier small."""
    small_prefill: Workers | None = Field(None, alias="small-prefill")
    """Its prefill replicas."""
    small_decode: Workers | None = Field(None, alias="small-decode")
    """Its decode replicas."""
    frontier: Workers | None = None
    """The tier frontier."""
    frontier_prefill: Workers | None = Field(None, alias="frontier-prefill")
    """Its prefill replicas."""
    frontier_decode: Workers | None = Field(None, alias="frontier-decode")
    """Its decode replicas."""


class RayPods(Record):
    """The tiers of config that have no urls: one RayService (KubeRay 1.7). Without such a tier there is none."""

    version: str = "2.60.0"
    """Ray's version in the image."""
    auth: Literal["token", "disabled"] = "token"
    """token: whoever talks to Ray must know a token that KubeRay makes. Serve's own port is not behind it."""
    excludeHeadFromServe: bool = True
    """Keep requests away from the head pod, so that its restart costs none."""
    upgrade: Upgrade = Upgrade()
    incrementalUpgrade: IncrementalUpgrade = IncrementalUpgrade()
    gcsFaultTolerance: FaultTolerance = FaultTolerance()
    autoscaler: Autoscaler = Autoscaler()
    head: Head = Head()
    workers: Workers = Workers()
    groups: Groups = Groups()
    podSecurityContext: kinds.PodSecurityContext = POD_SECURITY
    """Security context of the pods."""
    securityContext: kinds.SecurityContext = SECURITY
    """Security context of the containers."""
