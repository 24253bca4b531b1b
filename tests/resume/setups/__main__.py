"""Resume a run of a row in an interpreter of its own: `python -m tests.resume.setups ROW FOLDER` prints its outcome."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.rows import ROWS, outcome

print(json.dumps(outcome(ROWS[sys.argv[1]], Path(sys.argv[2]))))
