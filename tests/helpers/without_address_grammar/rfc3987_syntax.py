"""Stands for a package that jsonschema imports if it is there, to check the syntax of web addresses.

Its import builds dozens of parsers, which takes two seconds of a processor in every Jupyter server that tests start.
"""

raise ImportError("tests check no syntax of web addresses")
