"""The shipped graphs, one TOML file each."""
