"""The verb `doctor`: checks of a machine, a folder and a loaded node."""
