"""Past runs repeated: replayed to any moment, and verified span by span.

Promise: every step is a call of the public trainer; a difference is shown with the first field that differs.

Stands on: ranks, kind, graph, storage, state, report, program, resume, trainer.

Other rooms use:
    comparison: first_lines
    cuts: train_with_cuts
    history: RunHistory, Segment
    replay: after_amount, parse_moment, Replay
    verify: Verdict, verify_segment
"""
