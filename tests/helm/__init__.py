"""The chart: rendered by real Helm, in both majors, and checked against what Kubernetes and Ray take."""
