"""Sessions: a compiled graph with its state, which is saved, restored and compared.

Promise: a resumed run is bitwise the run that was never cut, or a line names what is not known; what has changed
between two starts is reported; nothing is overwritten in silence.

Stands on: ranks, kind, graph, plan, storage, state, data, report, program.

Other rooms use:
    environment: run_environment
    equal_ranks: require_equal, require_equal_weights
    rank_resume: choose, processes
    restore: repeated, restore_checkpoint, ResumeOptions
    save: CheckpointWriter
    session: Session
    setup_change: setup_changes
    sharded: assembled
    weights: load_weights, read_fitting
"""
