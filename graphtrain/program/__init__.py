"""A plan bound to resources and compiled to plain calls, and the loop that runs them."""
