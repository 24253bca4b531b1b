"""A graph with its kinds, flattened: every name is resolved to a reference.

Promise: a name that is resolved here is not looked up again; no resource of the user is needed.

Stands on: kind, graph.

Other rooms use:
    changers: changers
    plan: optimizers_of, Plan, PlanNode
    scope: counter_of, field_type, node_at, outputs_of, readable_fields, Ref, resource_copies, resources_of,
        Scope, slots_of, value_type, ValueType
    slots: Point, Slots
"""
