pytest_plugins = "weir.testing.pytest_worlds"
