"""Graphs: each TOML file is one."""
