"""A plan bound to resources and compiled to plain calls, and the loop that runs them.

Promise: there is one `while`; the cost of a transition does not depend on the size of the graph; `RunState` holds
everything that the rest of the run depends on.

Stands on: ranks, kind, graph, plan, storage, state, data, report.

Other rooms use:
    agreement: Agreement, error_as_plain, error_of_plain
    bind: Program, ProgramNode
    breakpoints: at_limit, before_node, Breakpoint, parse_amount, with_breakpoints
    cells: Cells
    compiled_graph: CompiledGraph
    gradient_windows: counters_of
    loop: Loop, Transition
    own_attributes: changed_attributes, own_attributes
    rank_visits: Act, batch_slots
    requests: Requests, SavePolicy
    resources: prepare, PROVIDED, resolve_device, SHARDED, STEP_FUNCTIONS, USUAL, with_copies
    run_state: AFTER_SETUP, EVERYTHING, Exemptions, OF_NODES, RunState, Section, SECTIONS
    stopwatch: NodeTimes, Stopwatch
    table: Compiler
    triggers: Due, set_triggers
    visits: handle_request, nothing, Visits
    whole_run: PlannedRun
"""
