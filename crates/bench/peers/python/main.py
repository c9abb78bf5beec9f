"""main.py SYSTEM produce | main.py SYSTEM work MODE N"""

import importlib
import sys

from contract import end_with_input

system, part, *rest = sys.argv[1:]
module = importlib.import_module(f"with_{system}")
if part == "produce":
    module.producer()
else:
    end_with_input()
    module.worker(rest[0], int(rest[1]))
