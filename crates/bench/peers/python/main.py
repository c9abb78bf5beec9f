"""main.py SYSTEM produce | main.py SYSTEM work MODE N"""

import importlib
import sys

system, part, *rest = sys.argv[1:]
module = importlib.import_module(f"with_{system}")
if part == "produce":
    module.producer()
else:
    module.worker(rest[0], int(rest[1]))
