"""What a recorded session would have been with other settings, another link, or other producers.

Modules: settings and their grid (`scenario`), the recorded puts (`trace`), the recorded times (`costs`),
producers (`producers`), the simulation (`kernel`, with `queues`), its figures (`figures`) and the answer
(`answer`). `trioha_spark.what_if` runs the grid on Spark.
"""
