"""Recorded sessions read with NumPy: their records, the state at any record, invariants and figures."""
