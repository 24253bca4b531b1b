"""The shipped overlays, one TOML file each."""
