"""The shipped graphs, one TOML file each; overlays in `overlays/`, whole procedures in `gallery/`.

Promise: every graph passes its checks, and equals the loop written by hand, bit for bit.
"""
