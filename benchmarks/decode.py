"""Decode speed beside transformers; the same as `headrace bench decode`.

python benchmarks/decode.py --model demo --json benchmarks/results/<machine>-decode.json
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "decode", *sys.argv[1:]]))
