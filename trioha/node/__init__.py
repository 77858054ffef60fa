"""The root nursery: builds a node's parts, wires their watermarks, starts and stops them."""
