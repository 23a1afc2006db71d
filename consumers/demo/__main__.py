"""`python -m consumers.demo`, which `make run` calls."""

from .show import main

raise SystemExit(main())
