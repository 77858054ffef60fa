"""The four screens of the monitor, as panes of one application screen: only the one in sight is drawn."""
