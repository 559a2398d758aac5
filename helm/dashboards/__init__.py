"""Grafana dashboards, built from code: `python -m helm.dashboards` writes `helm/forebay/files/dashboards/*.json`."""

from helm.dashboards import cache, engines, overview, prefill, queues, router
from helm.dashboards.record import Board

BOARDS: tuple[Board, ...] = (
    overview.BOARD,
    cache.BOARD,
    router.BOARD,
    queues.BOARD,
    engines.BOARD,
    prefill.BOARD,
)
