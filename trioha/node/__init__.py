"""A node: makes its parts, starts them in one nursery tree and stops them.

Modules and libraries of a part that a setting turns on are imported where the part is made: a node without
the setting starts sooner and is smaller.
"""
