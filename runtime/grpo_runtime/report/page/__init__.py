"""A run as one HTML file that needs nothing else: curves, completions, where the time goes, configuration.

`page` puts it together, `charts` says which metrics are drawn where, `figures` draws them with Plotly, and
`page.html` is the template.
"""
