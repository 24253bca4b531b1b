"""Overlays: each TOML file is one."""
