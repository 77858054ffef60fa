"""What a recorded session would have been with other settings, another link, or other producers.

Modules, in the order of the data: what a recording shows (`recorded`), settings and their grid (`scenario`),
puts with other settings (`play`), their figures (`figures`), the parts of a session together (`model`), and
the answer with the model's own error (`answer`).
"""
