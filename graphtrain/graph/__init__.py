"""The procedure as a value: graphs, their edits and differences, their TOML."""

from graphtrain.graph.graph import EditableGraph as EditableGraph
