"""The trainer and the life of a run: signals, requests, and what watches it.

Promise: a run can be stopped after any transition, and its status says how it ended.

Stands on: ranks, kind, graph, plan, storage, viz, state, report, program, checks, resume.

Other rooms use:
    debugging: users_frames
    graph: fit, Graph
    trainer: Trainer
"""
