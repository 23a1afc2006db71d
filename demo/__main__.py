"""`python -m demo`, which `make run` calls."""

try:
    from .entry import main
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] == __package__.split(".")[0]:
        raise
    raise SystemExit(f"the demonstration needs {error.name}: pip install -e '.[demo]'") from None

raise SystemExit(main())
