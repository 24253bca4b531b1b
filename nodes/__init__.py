"""The shipped kinds, one file per kind of work; graphs find them through entry points."""
