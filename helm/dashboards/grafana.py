"""From records to Grafana's JSON, by its own foundation SDK."""

import json
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from helm.dashboards.record import Board, Limit, Panel

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH, ROW_HEIGHT = 24, 1
HEIGHTS = {"number": 4, "lines": 8, "stack": 8}


def rendered(board: Board) -> str:
    """The dashboard as the text of its file."""
    page = (
        builders.Dashboard(board.title)
        .uid(f"forebay-{board.name}")
        .description(board.about)
        .tags(["forebay"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
    )
    page = page.with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for one in board.picks:
        page = page.with_variable(_variable(one.name, one.metric, one.label))
    link = builders.DashboardLink("Forebay").type(models.DashboardLinkType.DASHBOARDS).tags(["forebay"])
    page = page.link(link.as_dropdown(True).include_vars(True).keep_time(True))
    number, top = 0, 0
    for row in board.rows:
        number += 1
        page = page.with_row(builders.Row(row.title).id(number).grid_pos(models.GridPos(ROW_HEIGHT, WIDTH, 0, top)))
        top, left, tallest = top + ROW_HEIGHT, 0, 0
        for panel in row.panels:
            number += 1
            height = HEIGHTS[panel.kind]
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            place = models.GridPos(height, panel.width, left, top)
            page = page.with_panel(_panel(panel).id(number).grid_pos(place))
            left, tallest = left + panel.width, max(tallest, height)
        top += tallest
    return json.dumps(page.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(name: str, metric: str, label: str) -> builders.QueryVariable:
    # ".*" also matches series without the label: namespaces are an operator's, a bare Prometheus has none.
    return (
        builders.QueryVariable(name)
        .label(name)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all"))
    )


def _panel(panel: Panel) -> Any:
    made: Any
    if panel.kind == "number":
        made = stat.Panel().graph_mode(common.BigValueGraphMode.AREA).color_mode(common.BigValueColorMode.VALUE)
    else:
        legend = common_builders.VizLegendOptions().show_legend(True)
        made = (
            timeseries.Panel()
            .legend(legend.placement(common.LegendPlacement.BOTTOM).display_mode(common.LegendDisplayMode.LIST))
            .line_width(1)
            .fill_opacity(30 if panel.kind == "stack" else 5)
            .thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED))
        )
        if panel.kind == "stack":
            made = made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    made = made.title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE).min(0)
    if panel.most is not None:
        made = made.max(panel.most)
    made = made.thresholds(_thresholds(panel.limit))
    for place, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.shown).legend_format(query.legend)
        made = made.with_target(target.ref_id(chr(ord("A") + place)).datasource(SOURCE))
    return made


def _thresholds(limit: Limit) -> builders.ThresholdsConfig:
    low, high = ("green", "red") if limit.side == "above" else ("red", "green")
    steps = [models.Threshold(None, low), models.Threshold(limit.at, high)]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
