"""The rule of barriers, explored with the classes that ship."""
