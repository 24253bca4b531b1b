"""The procedure `manual`: its text, its kinds, its example and its picture."""
