"""Until nobody imports it any more."""

from tests.looking.running import SLOW as SLOW
from tests.looking.running import TINY as TINY
from tests.looking.running import Result as Result
from tests.looking.running import arguments as arguments
from tests.looking.running import contents as contents
from tests.looking.running import environment as environment
from tests.looking.running import forget as forget
from tests.looking.running import in_a_new_process as in_a_new_process
from tests.looking.running import in_a_process as in_a_process
from tests.looking.running import python as python
from tests.looking.running import start as start
from tests.looking.running import start_new as start_new
from tests.looking.running import written as written


from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphtrain.command.verify_cuts import Ended


def launched(words: Sequence[str], env: Mapping[str, str], log: Path) -> Any:
    done = python(*words, cwd=Path.cwd(), env={**environment(), **env, "OMP_NUM_THREADS": "1"})
    return Ended(done.code, done.err + done.out)
