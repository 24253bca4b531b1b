"""The text form of graphs: TOML in and out, overlays, and canonical JSON."""
