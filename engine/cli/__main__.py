"""`python -m engine.cli VERB ...`, for who starts the engine without the `headrace` command."""

from engine.cli import main

raise SystemExit(main())
