"""The procedure `ppo`: its text, its kinds, its example and its picture."""
