"""HTML reports: one page template for the report of a replay and for that of a what-if."""
