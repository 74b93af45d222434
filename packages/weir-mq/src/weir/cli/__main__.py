"""`python -m weir.cli` is `weir`, also where the package is not installed."""

from weir.cli.main import run

if __name__ == "__main__":
    run()
