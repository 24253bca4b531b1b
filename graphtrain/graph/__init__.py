"""The procedure as a value: graphs, guards, edits, overlays, differences, and their TOML.

Promise: a graph never changes, each edit returns another one; reading a graph runs none of its author's code, and needs
no torch.

Stands on: kind.

Other rooms use:
    calls: checked_call
    canonical: saved_json, structural_hash
    closures: any_of, Cell, COMPARISONS, compile_guard, constant, constant_value, Getter, never, stored
    difference: Difference, SIGNS
    elements: Edge, END, G, GraphData, kind_text, NESTED, Node, nodes_of, Problem, Problems, settings_of, Severity
    graph: PICTURE_SUFFIXES, write_new
    hooks: hooks_of
    read_toml: read_graph, read_overlays, sound
    registry: family_of_node, find_graph, find_kind, find_overlay, kind_of_node, known_graphs, known_kinds,
        known_overlays, summary, trains
    renaming: Renaming
    syntax: Constant, expand, Expression, field_of, FieldOf, FUNCTIONS, GuardSyntaxError, is_expression, Name, NUMBERS,
        Operation, parse, rebuilt, walk
"""

from graphtrain.graph.graph import EditableGraph as EditableGraph
