"""What the monitor's screen is made of. Every widget shows a frozen value and keeps nothing else."""
