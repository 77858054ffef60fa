"""The four panes of the main screen; only the visible one is drawn."""
