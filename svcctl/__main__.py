"""`python -m svcctl`: the same as the installed command."""

from svcctl.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
