"""The command line: one module for each group of commands.

Promise: a failure is one message that says what to do, and an exit code.

Stands on: ranks, kind, graph, storage, viz, state, report, program, checks, resume, trainer, proof, adapters.

Other rooms use:
    run: main
"""
