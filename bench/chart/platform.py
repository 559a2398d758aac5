"""The whole of the values, and those of what stands around the gateway and the engines."""

from typing import Literal

from pydantic import Field

from bench.chart import kinds
from bench.chart.engines import RayPods
from bench.chart.gateway import GatewayPods, Image
from bench.chart.kinds import POD_SECURITY, SECURITY, Labels, Port, Quantity
from core.config.records import Record


class IngressPath(Record):
    """One path of a host."""

    path: str = "/"
    """Path."""
    pathType: Literal["Prefix", "Exact", "ImplementationSpecific"] = "Prefix"
    """How it is matched."""


class IngressHost(Record):
    """One host."""

    host: str = Field(min_length=1)
    """Its name."""
    paths: tuple[IngressPath, ...] = (IngressPath(),)
    """Its paths."""


class Ingress(Record):
    """Ingress; TLS ends there."""

    enabled: bool = False
    """Make one."""
    className: str = ""
    """Ingress class."""
    annotations: Labels = {}
    """Annotations. The controller must not buffer answers, and must wait as long as the longest takes."""
    hosts: tuple[IngressHost, ...] = ()
    """Hosts; one at least."""
    tls: tuple[kinds.IngressTLS, ...] = ()
    """Certificates, by Secret."""


class ParentRef(Record):
    """A Gateway."""

    name: str = Field(min_length=1)
    """Its name."""
    namespace: str | None = None
    """Its namespace; null is the release's."""
    sectionName: str | None = None
    """Its listener; null is every one."""
    port: Port | None = None
    """Port of the listener; null is every one."""
    group: str | None = None
    """API group of the parent; null is a Gateway's."""
    kind: str | None = None
    """Kind of the parent; null is Gateway."""


class Route(Record):
    """HTTPRoute of Gateway API; TLS ends at the Gateway."""

    enabled: bool = False
    """Make one."""
    annotations: Labels = {}
    """Annotations."""
    parentRefs: tuple[ParentRef, ...] = ()
    """Gateways; one at least."""
    hostnames: tuple[str, ...] = ()
    """Host names; none is every one."""
    path: str = "/"
    """Prefix of paths."""
    requestTimeout: str = Field("0s", pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")
    """Time for a whole answer; 0s is no limit, which the gateway's own limits make safe."""


class Persistence(Record):
    """A disk."""

    enabled: bool = False
    """Keep data over restarts."""
    size: Quantity = "8Gi"
    """Size of the claim."""
    storageClassName: str | None = None
    """Storage class; null is the cluster's default."""


class Valkey(Record):
    """A Valkey server in the cluster, one pod. config.cache.store and config.auth.store name it where they are not
    set."""

    enabled: bool = False
    """Run one."""
    image: Image = Image(repository="valkey/valkey", tag="8.1.4-alpine")
    existingSecret: str = ""
    """Secret with the password; empty is no password, where networkPolicy alone keeps others out."""
    secretKey: str = "password"  # the name of a key
    """Key in it."""
    maxMemory: Quantity = "2Gi"
    """Most memory for data; when it is full, writes fail and nothing is thrown away. Above config.cache.max_bytes."""
    resources: kinds.Resources = {"requests": {"cpu": "250m", "memory": "2560Mi"}, "limits": {"memory": "3Gi"}}
    """Its resources."""
    persistence: Persistence = Persistence()
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
    podSecurityContext: kinds.PodSecurityContext = POD_SECURITY
    """Security context of the pod."""
    securityContext: kinds.SecurityContext = SECURITY
    """Security context of the container."""


class Policies(Record):
    """NetworkPolicies: everything that is not named here or needed is closed."""

    enabled: bool = True
    """Make them; the cluster's network must enforce them."""
    clients: tuple[kinds.PolicyPeer, ...] = ()
    """Who may call the gateway; none is everybody."""
    monitoring: tuple[kinds.PolicyPeer, ...] = (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    )
    """Who may read metrics."""
    operator: tuple[kinds.PolicyPeer, ...] = (
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}},
    )
    """KubeRay's operator, which must reach Ray's dashboard and Serve."""
    gatewayEgress: tuple[kinds.EgressRule, ...] = ()
    """Where the gateway may connect besides DNS, Valkey, the chart's engines, and the ports of urls and stores in
    config."""
    engineEgress: tuple[kinds.EgressRule, ...] = ()
    """Where engines may connect besides DNS, each other, Valkey, and modelHub."""
    modelHub: bool = True
    """Let engines download weights: port 443 everywhere."""


class Scrape(Record):
    """How metrics are read by prometheus-operator."""

    enabled: bool = False
    """Make one; needs the operator's custom resources."""
    interval: str = Field("15s", pattern="^[0-9]+(ms|s|m)$")
    """How often."""
    scrapeTimeout: str = Field("10s", pattern="^[0-9]+(ms|s|m)$")
    """How long one may take."""
    labels: Labels = {}
    """Labels by which the operator finds it."""


class Rules(Record):
    """Alert rules as a PrometheusRule."""

    enabled: bool = False
    """Make it; needs the operator's custom resources."""
    labels: Labels = {}
    """Labels by which the operator finds it."""


class Dashboards(Record):
    """Grafana dashboards as ConfigMaps, one each, for Grafana's sidecar."""

    enabled: bool = False
    """Make them."""
    labels: Labels = {"grafana_dashboard": "1"}
    """Labels by which the sidecar finds them."""
    annotations: Labels = {}
    """Annotations, such as the folder in Grafana."""


class Monitoring(Record):
    """Metrics, alerts and dashboards."""

    gateway: Scrape = Scrape()
    """ServiceMonitor of the gateway."""
    ray: Scrape = Scrape()
    """PodMonitor of head and workers: Ray's and vLLM's metrics."""
    rules: Rules = Rules()
    dashboards: Dashboards = Dashboards()


class Trial(Record):
    """The pod of `helm test`."""

    resources: kinds.Resources = {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"cpu": "500m", "memory": "256Mi"},
    }
    """Its resources."""
    timeoutSeconds: int = Field(120, ge=1)
    """How long it waits for the gateway to be ready."""


class Values(Record):
    """Forebay on Kubernetes."""

    nameOverride: str = ""
    """Replaces the chart's name in names."""
    fullnameOverride: str = Field("", max_length=40)
    """Replaces the beginning of all names."""
    imagePullSecrets: tuple[kinds.SecretRef, ...] = ()
    """Secrets for image registries."""
    config: kinds.Document = {}
    """The configuration document, as in forebay.yaml (docs/configuration.md). Without tiers, those of files/tiers.yaml:
    one small tier on one GPU. Tiers with urls run elsewhere; the others are run here, and get their urls from the
    chart. gateway.host, and where they are not set gateway.metrics_port (9090), gateway.drain (the longest
    timeout.total) and the stores are the chart's."""
    gateway: GatewayPods = GatewayPods()
    ray: RayPods = RayPods()
    valkey: Valkey = Valkey()
    ingress: Ingress = Ingress()
    httpRoute: Route = Route()
    networkPolicy: Policies = Policies()
    monitoring: Monitoring = Monitoring()
    test: Trial = Trial()
