"""`python -m consumers.cli` is `stream-dppca`."""

from .commands import main

raise SystemExit(main())
