"""The procedure `sam`: its text, its kinds, its example and its picture."""
