"""Widgets of the monitor's screen. A widget shows a frozen value and keeps only caches of what it drew."""
