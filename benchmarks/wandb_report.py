"""`python -m benchmarks.wandb_report --entity E --project P [--groups G ...]`: a workspace of Weights & Biases.

Its panels are chosen to compare schedulers: latency percentiles, goodput and fairness as bars, rounds as lines over the
engine's time. Needs an account and the package wandb-workspaces; --dry-run prints the workspace as JSON without either
account or network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sarathi.config import SCHEDULER_CONFIGS

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

NO_ACCOUNT = 2
PERCENTILES = ("p50", "p90", "p99")
# One colour for each scheduler, the same in every panel (Tableau's 20, which stay apart for most eyes).
COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac",
    "#a0cbe8", "#ffbe7d", "#8cd17d", "#b6992d", "#499894", "#86bcb6", "#d37295", "#fabfd2", "#d4a6c8", "#d7b5a6",
)  # fmt: skip


class Panel(NamedTuple):
    title: str
    metrics: tuple[str, ...]


def _percentiles(title: str, metric: str) -> list[Panel]:
    return [Panel(f"{title} {percentile}", (f"{metric}/{percentile}",)) for percentile in PERCENTILES]


# Of a run's summary; named as WandbFollower names them, from summary.json.
BARS: dict[str, list[Panel]] = {
    "Latency": [
        *_percentiles("TTFT, s:", "prefill_e2e_time"),
        *_percentiles("E2E, s:", "request_e2e_time"),
        *_percentiles("TPOT, s:", "decode_time_execution_plus_preemption_normalized"),
        *_percentiles("Inter-token latency, s:", "decode_token_execution_plus_preemption_time"),
        *_percentiles("Scheduling delay, s:", "request_scheduling_delay"),
    ],
    "Goodput and throughput": [
        Panel("Goodput, requests/s", ("slo/goodput_requests_per_s",)),
        Panel("Share of requests that met their targets", ("slo/share_met",)),
        Panel("Share that met TTFT", ("slo/share_ttft_met",)),
        Panel("Share that met TPOT", ("slo/share_tpot_met",)),
        Panel("Requests/s", ("requests_per_s",)),
        Panel("Output tokens/s", ("output_tokens_per_s",)),
    ],
    "Fairness": [
        Panel("Jain index of slowdown", ("fairness/jain_index_slowdown",)),
        Panel("Mean slowdown", ("fairness/mean_slowdown",)),
        Panel("Worst slowdown", ("fairness/max_slowdown",)),
        Panel("Longest wait, s", ("fairness/longest_wait",)),
        Panel("Preemptions", ("num_preemptions",)),
        Panel("Starved rounds", ("num_starved_rounds",)),
    ],
    "Latency prediction": [
        Panel("Mean absolute error, s", ("prediction/mae",)),
        Panel("Mean absolute error, %", ("prediction/mape_percent",)),
        Panel("Share of rounds within 5 % of the target", ("prediction/share_within_5_percent",)),
    ],
}
# Of every round, columns of rounds.csv.
LINES: dict[str, list[Panel]] = {
    "Rounds": [
        Panel("Round time against target, s", ("batch_execution_time", "target_time")),
        Panel("Round time against prediction, s", ("batch_execution_time", "predicted_time")),
        Panel("Tokens a round against budget", ("batch_num_tokens", "token_budget")),
        Panel("Prefill tokens a round", ("batch_num_prefill_tokens",)),
        Panel("Prefills a round", ("num_prefills",)),
        Panel("Decodes a round", ("batch_num_decode_tokens",)),
    ],
    "Queue": [
        Panel("Waiting requests", ("num_waiting",)),
        Panel("Running requests", ("num_running",)),
        Panel("KV blocks in use", ("num_used_blocks",)),
    ],
    "Refused chunks (APC)": [
        Panel("Refused by the cap", ("num_refused_by_cap",)),
        Panel("Refused by the minimum chunk", ("num_refused_by_min_chunk",)),
        Panel("Warm starts", ("num_warm_starts",)),
        Panel("Prefill cap", ("prefill_cap",)),
    ],
}
SCHEDULER = "scheduler"  # the key of a run's config that its colour and place follow
PLOTS = ("latency_cdf", "ttft_by_prompt_length", "round_time", "queue_depth", "tokens_per_round")


def build_workspace(entity: str, project: str, name: str, groups: Sequence[str]) -> Workspace:
    """The workspace, not saved anywhere yet; `groups` are the only ones shown, all if empty."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    def bars(panel: Panel) -> Any:
        by = wr.Config(SCHEDULER)
        metrics: list[Any] = [*panel.metrics]
        return wr.BarPlot(
            title=panel.title, metrics=metrics, groupby=by, groupby_aggfunc="mean", groupby_rangefunc="stderr"
        )

    def lines(panel: Panel) -> Any:
        return wr.LinePlot(title=panel.title, x="end_time", y=list(panel.metrics), title_x="engine's time, s")

    sections = [ws.Section(name=title, panels=[bars(panel) for panel in BARS[title]]) for title in BARS]
    sections += [ws.Section(name=title, panels=[lines(panel) for panel in LINES[title]]) for title in LINES]
    media = [wr.MediaBrowser(title=plot, media_keys=[f"plots/{plot}"]) for plot in PLOTS]
    sections.append(ws.Section(name="Plots and report", panels=[*media, wr.MediaBrowser(media_keys=["report"])]))
    for section in sections[:2]:
        section.is_open = True
    runs = ws.RunsetSettings(
        filters=expr.And(expr.Metric("Group").isin(list(groups))) if groups else "",
        groupby=[expr.Config(SCHEDULER)],
        group_colors=dict(zip(SCHEDULER_CONFIGS, COLOURS, strict=False)),
        pinned_columns=[
            f"config:{SCHEDULER}.value",
            "summary:prefill_e2e_time/p99",
            "summary:request_e2e_time/mean",
            "summary:fairness/jain_index_slowdown",
        ],
    )
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=sections,
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=runs,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entity", required=True, help="user or team that owns the project")
    parser.add_argument("--project", required=True, help="as in --metrics_config_wandb_project")
    parser.add_argument("--groups", nargs="+", default=[], help="show the runs of these alone")
    parser.add_argument("--name", default="Schedulers compared", help="of the workspace")
    parser.add_argument("--dry-run", action="store_true", help="print the workspace as JSON, save nothing")
    args = parser.parse_args(argv)
    try:
        import wandb

        workspace = build_workspace(args.entity, args.project, args.name, args.groups)
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is needed (pip install wandb-workspaces)", file=sys.stderr)
        return NO_ACCOUNT
    if args.dry_run:
        # There is no public way to see what `save` sends.
        print(workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2))
        return 0
    try:
        workspace.save()
    except (wandb.Error, OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        print(
            f"error: {reason}; an account is needed that may write to {args.entity}/{args.project}: set WANDB_API_KEY "
            "or run wandb login (--dry-run needs none)",
            file=sys.stderr,
        )
        return NO_ACCOUNT
    print(workspace.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
