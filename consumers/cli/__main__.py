"""`python -m consumers.cli` is `stream-dppca`."""

from .entry import main

raise SystemExit(main())
