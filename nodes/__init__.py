"""The built-in kinds, one file each, named after the kind. Files whose names begin with an underscore are helpers."""
