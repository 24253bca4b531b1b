"""Processes that are forked from a server with a few imports: small, and with no state of a run to lean on.

A copy of the process that runs the tests takes twice as long, with all that other tests have imported.
"""

from __future__ import annotations

import multiprocessing

from tests.looking.running import IMPORTED

CONTEXT = multiprocessing.get_context("forkserver")
# There is one server in a process, so it imports what all need who use it.
CONTEXT.set_forkserver_preload([*IMPORTED])
