"""Analysis of recorded sessions and of commit logs with NumPy and Arrow: nothing in here needs Spark."""
