"""The procedure `yielding`: its text, its kinds, its example and its picture."""
