"""An application by its name, `module:app`, as commands are given it."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from weir.app.app import App


class NoApp(ValueError):
    """A name that leads to no application; the message says what would."""


def load(name: str) -> App:
    """Import a module, of this folder too, and return its application.

    Raises `NoApp` for a name that leads to none, and what the module itself raises.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise NoApp(f"{name!r}: write MODULE:APP, as in ledger:app for the app of ledger.py")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses another
        raise NoApp(f"no module {error.name!r} in {folder}: go to where it lies") from None
    app = getattr(found, attribute, None)
    if not isinstance(app, App):
        apps = [key for key, value in vars(found).items() if isinstance(value, App)]
        there = f"there is {', '.join(apps)}" if apps else "make one with weir.App()"
        raise NoApp(f"{attribute!r} of {module} is no weir.App: {there}")
    return app
