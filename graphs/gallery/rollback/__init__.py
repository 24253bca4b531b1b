"""The procedure `rollback`: its text, its kinds, its example and its picture."""
