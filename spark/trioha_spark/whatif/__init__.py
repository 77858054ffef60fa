"""What a recorded session would have been with other settings, another link, or other producers.

Nothing in here but `grid` needs Spark: settings and their grid (`scenario`), what a recording says (`trace`),
the times it took (`costs`), who put (`producers`), the simulation (`kernel`, with `queues`) and its figures
(`figures`).
"""
