"""Models of other libraries, unchanged: an adapter is a function that returns a graph and resources.

Promise: what is not done as in the library is an error with its name. An adapter imports what users can import.

Other rooms use:
    lightning: setup
"""
