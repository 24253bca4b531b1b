"""What is seen of a run: rows of metrics, loggers, snapshots, displays, and pages for a browser.

Promise: each row is written once, also after a kill; a logger or a display that fails never fails a run.

Stands on: ranks, graph, storage, viz.

Other rooms use:
    display.choose
    display.panel
    logger: Beginning, Histogram, Image, Logger, Loggers, RunLogger, Text
    numbers: duration, metric, scaled
    page.document: write_report
    page.server: serve, Watched
    recorded: joined, Recorded
    recorder: added, Means, Recorder
    run: Run, run_directories
    snapshot: Display, Snapshot
    tensorboard: TensorBoard
    values: as_numbers, check_metric, described, detached, is_number, Max, Min, not_finite_since, ROW_POSITION, Sum
    wandb: WandB
"""
